// Stands in for a gloo header that the torch wheel leaves out. See ../context.h.
#pragma once

namespace gloo {
namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

} // namespace transport
} // namespace gloo
