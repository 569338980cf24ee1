// What metal-cpp names of IOSurface and our code does not use.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
