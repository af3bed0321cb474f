// SIGTERM and SIGINT, without code in signal handlers.
#ifndef ATTNSERVE_SERVER_SIGNALS_H_
#define ATTNSERVE_SERVER_SIGNALS_H_

#include "lib/base/mutex.h"

namespace attnserve {

// Takes the process's SIGTERM and SIGINT on a thread of its own. Made once, before any other
// thread, because threads inherit that the signals are blocked; lives as long as the process.
class Signals {
 public:
  Signals();

  // The first signal: before Wait has been called it ends the process with status 0, since nothing
  // has been served yet; later it lets Wait return. The second ends the process at once with
  // status 1.
  void Wait();

 private:
  void Loop();

  Mutex mutex_;
  CondVar arrived_;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_arrived_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_SIGNALS_H_
