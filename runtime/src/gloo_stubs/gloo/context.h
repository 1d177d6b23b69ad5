// The torch wheel ships ProcessGroupGloo.hpp but none of the gloo headers it includes. These
// declarations let it compile; every definition comes from libtorch_cpu.so. Nothing here may be
// constructed, destroyed or inherited from: the layouts are not gloo's.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
