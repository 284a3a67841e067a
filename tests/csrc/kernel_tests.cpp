// Runs every kernel of every instruction set that this machine has, then the pool. Ends with 0, or aborts.
#include "check.h"
#include "dispatch.h"

int main() {
  using namespace qwill;
  for (const Kernels* set : available_kernels()) {
    tests::elementwise_tests(*set);
    tests::linear_tests(*set);
    tests::attention_tests(*set);
    std::printf("%s: good\n", set->isa);
  }
  tests::pool_tests();
  std::printf("pool: good\n");
}
