#if __METAL_VERSION__ < 400
#error "MetalPerformancePrimitives needs language version 400"
#endif
#pragma softmetal tensor_ops
