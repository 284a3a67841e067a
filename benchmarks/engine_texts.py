"""Texts to edit: for each a request to change something, and the text, of which the answer repeats nearly all."""

from __future__ import annotations

__all__ = ["EDITS"]

CODE = '''\
class Stock:
    """Counts what a shop has in its shelves."""

    def __init__(self, name):
        self.name = name
        self.items = {}
        self.prices = {}

    def add(self, item, count, price):
        if count <= 0:
            raise ValueError("count must be positive")
        self.items[item] = self.items.get(item, 0) + count
        self.prices[item] = price

    def take(self, item, count):
        if self.items.get(item, 0) < count:
            raise KeyError(f"not enough {item} in {self.name}")
        self.items[item] -= count
        if self.items[item] == 0:
            del self.items[item]
        return count * self.prices[item]

    def total(self):
        result = 0.0
        for item, count in self.items.items():
            result += count * self.prices[item]
        return result

    def report(self):
        lines = [f"{self.name}: {len(self.items)} kinds"]
        for item in sorted(self.items):
            lines.append(f"{item:20} {self.items[item]:6} {self.prices[item]:8.2f}")
        lines.append(f"total {self.total():.2f}")
        return "\\n".join(lines)
'''

ENGLISH = """\
Thomas came down to the harbour before the sun was up. The boats lay side by side, and the water between them \
was as still as a plate. He put his basket on the wall, took out the bread that his sister had wrapped in a \
cloth, and ate slowly, looking at the lamp at the end of the pier. At six the first men arrived. They greeted \
Thomas by his name, asked about his father, and went on to their nets. Nobody spoke about the storm. Two of \
the boats had not come home on Monday, and since then the old women stood at the chapel every evening and \
counted the sails. When the bell rang, Thomas took his basket and walked along the wall to the last boat, \
which was painted green. The captain sat on a box and mended a rope. "You are early," he said. "I could not \
sleep," answered Thomas. The captain nodded as if that were a good reason to go to sea. He pointed at the \
oars. "Then row us out, Thomas. The wind will come later, and it will come from the west."
"""

CHINESE = """\
小明家住在河边的一个小村子里。村子不大,只有三十几户人家,门前都种着桃树。每年春天,桃花开满了整条河岸,城里的人坐着\
船来看花。小明的爷爷是村里的木匠,他做的桌子又平又稳,用了几十年也不会摇晃。放学以后,小明常常坐在爷爷的木工房里写作\
业,听着刨子一下一下地响,闻着木头的香味。

有一天,老师让大家写一篇作文,题目是《我最想做的事》。同学们有的想当医生,有的想当飞行员,有的想去很远的地方旅行。小\
明想了很久,写道:"我想学会爷爷的手艺,给村里的每一户人家做一张桌子。"老师把这篇作文读给全班听,教室里安静极了。晚\
上,小明把作文念给爷爷听。爷爷没有说话,只是放下手里的刨子,从柜子里拿出一把小小的锯子,轻轻地放在小明的手上。
"""

SETTINGS = """\
{
  "server": {"host": "0.0.0.0", "port": 8080, "workers": 4, "timeout_seconds": 30},
  "log": {"level": "info", "file": "/var/log/shop/server.log", "keep_days": 14},
  "database": {"host": "db.example.org", "port": 5432, "name": "shop", "user": "shop", "pool": 16},
  "cache": {"host": "cache.example.org", "port": 6379, "entries": 100000, "seconds": 600},
  "mail": {"host": "mail.example.org", "port": 587, "sender": "shop@example.org", "retries": 3},
  "limits": {"requests_per_minute": 120, "upload_megabytes": 25, "items_per_page": 50},
  "features": {"search": true, "reviews": true, "coupons": false, "gift_cards": false},
  "languages": ["en", "zh", "de", "fr", "ja"]
}
"""

EDITS = {
    "code": f"Rename the method `take` to `remove`. Give the whole code back, changed, and nothing else.\n\n{CODE}",
    "english": f"Replace the name Thomas by Henry everywhere. Give the whole text back, and nothing else.\n\n{ENGLISH}",
    "chinese": f"把下面文章里的“小明”全部改成“小红”,把改好的全文完整地写出来,不要写别的。\n\n{CHINESE}",
    "settings": f"Change the server's port to 9090. Give the whole file back, and nothing else.\n\n{SETTINGS}",
}
"""Name -> what the user says."""
