// sysctlbyname, which Linux's C library lacks; the software device answers.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C"
#endif
    int sysctlbyname(const char* name, void* value, size_t* size, void* set, size_t set_size);
