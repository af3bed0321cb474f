// The remote procedures, for metrics and logs.
#ifndef ATTNSERVE_SERVER_RPC_NAMES_H_
#define ATTNSERVE_SERVER_RPC_NAMES_H_

#include <cstddef>

namespace attnserve {

enum class Rpc {
  kForward,
  kAttend,
  kDecode,
  kDecodeBatch,
  kStreamDecode,
  kCreateSession,
  kGetSession,
  kListSessions,
  kDeleteSession,
  kResetCache,
  kTruncateSession,
  kListModels,
  kGetModel,
  kGetServerInfo,
};

// Value of the label `method`, in the order of Rpc.
inline constexpr const char* kRpcNames[] = {
    "Forward",         "Attend",     "Decode",       "DecodeBatch",   "StreamDecode",
    "CreateSession",   "GetSession", "ListSessions", "DeleteSession", "ResetCache",
    "TruncateSession", "ListModels", "GetModel",     "GetServerInfo",
};
inline constexpr size_t kRpcCount = sizeof kRpcNames / sizeof kRpcNames[0];

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_RPC_NAMES_H_
