// Which instruction set the kernels of this process use.
//
// Each kernel family has one source file per instruction set (name_avx512.cpp, name_avx2.cpp,
// name_neon.cpp, name_portable.cpp); setup.py compiles each with the flags of its suffix, and
// the file is empty on other processors. A family need not have them all: it then takes the
// next one down that it has.
#pragma once

#include <cstdint>

namespace pamx::cpu {

enum class Isa : int32_t {
  portable,  // plain C++
  neon,      // Armv8.2-A with dot products
  avx2,      // AVX2, FMA and F16C (x86-64-v3)
  avx512,    // AVX-512 F, BW, DQ, VL and VNNI, besides those of avx2
};

// The best that this processor has. PAMX_CPU_ISA names a lesser one to use instead; read once.
Isa isa();
const char* isa_name(Isa isa);

}  // namespace pamx::cpu
