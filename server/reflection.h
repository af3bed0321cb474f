// Server reflection: how clients without our protos learn them.
#ifndef ATTNSERVE_SERVER_REFLECTION_H_
#define ATTNSERVE_SERVER_REFLECTION_H_

namespace attnserve {

// Turns reflection on for servers built from now on, the standard health service included. Call it
// before the first server is built.
void EnableReflection();

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_REFLECTION_H_
