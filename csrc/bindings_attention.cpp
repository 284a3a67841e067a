#include <nanobind/stl/array.h>

#include "attention_op.h"
#include "bindings.h"
#include "dispatch.h"

namespace nb = nanobind;

namespace qwill {
namespace {

using Sizes = std::array<int64_t, 5>;       // T, B, Hkv, query heads of each, D
using Rows = std::array<int64_t, 2>;        // pointer, elements from one token to the next
using Metadata = std::array<uintptr_t, 3>;  // query_start, context_lens, slot_mapping
using Tables = std::array<int64_t, 3>;      // pointer, entries from one request to the next, entries of each

// One layer's keys and values: where they and their scales lie (scales 0 where there are none), S, the type's number.
struct CacheLayer {
  uintptr_t keys, values, key_scales, value_scales;
  int64_t block_size;
  int type;
};

void attention(Pool& pool, Program* program, const Kernels& kernels, const Sizes& sizes, float scale,
               const std::array<Rows, 3>& qkv, uintptr_t out, const Metadata& metadata, const Tables& tables,
               const CacheLayer* cache) {
  AttentionArguments a{};
  const float** rows[] = {&a.q, &a.k, &a.v};
  int64_t* strides[] = {&a.q_stride, &a.k_stride, &a.v_stride};
  for (size_t i = 0; i < 3; i++) {
    *rows[i] = pointer<float>(static_cast<uintptr_t>(qkv[i][0]));
    *strides[i] = qkv[i][1];
  }
  a.out = pointer<float>(out);
  a.tokens = sizes[0];
  a.requests = sizes[1];
  a.heads = {sizes[2], sizes[3], sizes[4], scale};
  a.query_start = pointer<int32_t>(metadata[0]);
  a.context_lens = pointer<int32_t>(metadata[1]);
  a.slot_mapping = pointer<int64_t>(metadata[2]);
  a.block_tables = pointer<int32_t>(static_cast<uintptr_t>(tables[0]));
  a.table_stride = tables[1];
  a.table_width = tables[2];
  if (cache) {
    int64_t stride = a.heads.kv_heads * a.heads.head_dim;
    auto type = static_cast<CacheType>(cache->type);
    a.keys = {pointer<void>(cache->keys), pointer<float>(cache->key_scales), stride, type};
    a.values = {pointer<void>(cache->values), pointer<float>(cache->value_scales), stride, type};
    a.block_size = cache->block_size;
  }
  submit(pool, program, std::make_unique<AttentionOp>(kernels, a));
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<CacheLayer>(m, "CacheLayer")
      .def(nb::init<uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, int>(), nb::arg("keys"), nb::arg("values"),
           nb::arg("key_scales"), nb::arg("value_scales"), nb::arg("block_size"), nb::arg("type"));
  m.def("attention", &attention, nb::arg("pool"), nb::arg("program").none(), nb::arg("kernels"), nb::arg("sizes"),
        nb::arg("scale"), nb::arg("qkv"), nb::arg("out"), nb::arg("metadata"), nb::arg("tables"),
        nb::arg("cache").none());
}

}  // namespace qwill
