// What metal-cpp names of CoreGraphics and our code does not use.
#pragma once

typedef struct CGColorSpace* CGColorSpaceRef;
