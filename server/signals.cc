#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "server/log.h"

namespace attnserve {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([this] { Loop(); }).detach();
}

void Signals::Wait() {
  MutexLock lock(mutex_);
  waiting_ = true;
  while (!has_arrived_) arrived_.Wait(mutex_);
}

void Signals::Loop() {
  const sigset_t set = StopSignals();
  int signal = 0;
  sigwait(&set, &signal);
  Log(LogLevel::kInfo, "signal", {{"number", signal}});
  {
    MutexLock lock(mutex_);
    if (!waiting_) _exit(0);
    has_arrived_ = true;
    arrived_.NotifyAll();
  }
  sigwait(&set, &signal);
  Log(LogLevel::kWarning, "second_signal", {{"number", signal}});
  _exit(1);
}

}  // namespace attnserve
