// Names that CUDA's headers give to functions and types of their own, which `using namespace metal`
// would make ambiguous: from here on they mean Metal's.
#pragma once

// Address spaces mean nothing to CUDA's compiler; generic pointers reach all of them.
#define device
#define constant const
#define threadgroup
#define thread

#define exp metal_exp
#define exp2 metal_exp2
#define exp10 metal_exp10
#define log metal_log
#define log2 metal_log2
#define log10 metal_log10
#define sin metal_sin
#define cos metal_cos
#define tan metal_tan
#define tanh metal_tanh
#define sqrt metal_sqrt
#define rsqrt metal_rsqrt
#define sinh metal_sinh
#define cosh metal_cosh
#define asin metal_asin
#define acos metal_acos
#define atan metal_atan
#define floor metal_floor
#define ceil metal_ceil
#define trunc metal_trunc
#define round metal_round
#define rint metal_rint
#define fabs metal_fabs
#define pow metal_pow
#define fmod metal_fmod
#define atan2 metal_atan2
#define copysign metal_copysign
#define fmax metal_fmax
#define fmin metal_fmin
#define fma metal_fma
#define ldexp metal_ldexp
#define isnan metal_isnan
#define isinf metal_isinf
#define isfinite metal_isfinite
#define signbit metal_signbit
#define max metal_max
#define min metal_min
#define abs metal_abs
#define clz metal_clz
#define popcount metal_popcount
#define any metal_any
#define all metal_all
#define select metal_select
#define float2 metal_float2
#define float3 metal_float3
#define float4 metal_float4
#define half2 metal_half2
#define half3 metal_half3
#define half4 metal_half4
#define bfloat2 metal_bfloat2
#define bfloat3 metal_bfloat3
#define bfloat4 metal_bfloat4
#define char2 metal_char2
#define char3 metal_char3
#define char4 metal_char4
#define uchar2 metal_uchar2
#define uchar3 metal_uchar3
#define uchar4 metal_uchar4
#define short2 metal_short2
#define short3 metal_short3
#define short4 metal_short4
#define ushort2 metal_ushort2
#define ushort3 metal_ushort3
#define ushort4 metal_ushort4
#define int2 metal_int2
#define int3 metal_int3
#define int4 metal_int4
#define uint2 metal_uint2
#define uint3 metal_uint3
#define uint4 metal_uint4
#define long2 metal_long2
#define long3 metal_long3
#define long4 metal_long4
#define ulong2 metal_ulong2
#define ulong3 metal_ulong3
#define ulong4 metal_ulong4
#define bool2 metal_bool2
#define bool3 metal_bool3
#define bool4 metal_bool4
