// Which instruction set runs here: the best one that this machine has, or the one asked for by name.
#include <stdexcept>



#include "dispatch.h"

namespace qwill {

#define QWILL_DECLARE(isa) \
  namespace isa {          \
  extern const Kernels table; \
  }
QWILL_DECLARE(baseline)
#if defined(__x86_64__)
QWILL_DECLARE(avx2)
QWILL_DECLARE(avx2_vnni)
QWILL_DECLARE(avx512)
#endif
#undef QWILL_DECLARE

namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
// AVX-VNNI (leaf 7, subleaf 1, eax bit 4) has no name in the compilers we support.
bool has_avx_vnni() {
  unsigned a = 7, b, c = 1, d;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return has_avx2() && (a & 1u << 4);
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

}  // namespace

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  if (has_avx512()) found.push_back(&avx512::table);
  if (has_avx_vnni()) found.push_back(&avx2_vnni::table);
  if (has_avx2()) found.push_back(&avx2::table);
#endif
  found.push_back(&baseline::table);
  return found;
}

const Kernels& kernels(const std::string& isa) {
  std::string names;
  for (const Kernels* set : available_kernels()) {
    if (isa.empty() || isa == set->isa) return *set;
    names += names.empty() ? set->isa : std::string(", ") + set->isa;
  }
  throw std::invalid_argument(names);
}

}  // namespace qwill
