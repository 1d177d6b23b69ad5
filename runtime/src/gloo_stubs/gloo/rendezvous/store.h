// Stands in for a gloo header that the torch wheel leaves out. See ../context.h.
// The real class has more virtual functions and a base: a vtable made from this one is wrong, so
// no object of it, or of c10d's GlooStore, may ever be constructed here (a test reads the symbols).
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {
namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) = 0;
};

} // namespace rendezvous
} // namespace gloo
