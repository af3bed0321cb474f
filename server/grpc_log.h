// What gRPC itself has to say.
#ifndef ATTNSERVE_SERVER_GRPC_LOG_H_
#define ATTNSERVE_SERVER_GRPC_LOG_H_

#include "server/log.h"

namespace attnserve {

// Logs gRPC's lines in our form: its errors at `errors`, others at kDebug. Replaces what was set
// before.
void LogGrpc(LogLevel errors);

// Whether an address has stopped to take connections, which shows in gRPC's log alone: it gives up
// listening, for good, when the process is out of file descriptors. LogGrpc has been called.
bool HasStoppedListening();

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_GRPC_LOG_H_
