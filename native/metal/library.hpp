// Compiled kernels: each specialisation is made when it is first needed, and kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/launch/launch.hpp"

namespace pamx::metal {

struct Pipeline {
  void* state = nullptr;  // id<MTLComputePipelineState>; the library keeps it
};

// Where the shaders are.
struct ShaderFiles {
  std::string folder;    // of the .metal files
  std::string metallib;  // specialisations compiled beforehand; empty: none
};

// Safe to use from any thread.
class Library {
 public:
  // device: id<MTLDevice>; kept.
  Library(void* device, ShaderFiles files);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // The launch's specialisation, with its function constants set.
  //
  // Throws Error(PAMX_FAILED): a source cannot be read or the compiler refuses it, in its words;
  // PAMX_UNSUPPORTED: this system cannot compile it, or this GPU cannot run it in a threadgroup of
  // the launch's size.
  Pipeline pipeline(const plan::Launch& launch);

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace pamx::metal
