// Reading memory and nothing else: the limit that the speed of decoding is held against.
#include "isa.h"

namespace qwill::QWILL_ISA {

float read_floats(const float* x, int64_t count) {
  F a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    a = a + load(x + i);
    b = b + load(x + i + 16);
    c = c + load(x + i + 32);
    d = d + load(x + i + 48);
  }
  for (; i < count; i += 16) a = a + load_first(x + i, count - i);
  return reduce_add((a + b) + (c + d));
}

}  // namespace qwill::QWILL_ISA
