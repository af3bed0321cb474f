// Counts what a test program allocates.
#ifndef ATTNSERVE_TESTS_UNIT_CACHE_ALLOCATION_COUNTER_H_
#define ATTNSERVE_TESTS_UNIT_CACHE_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace attnserve {

// Calls of the global operator new so far, by all threads. A file of its own replaces the operator,
// so that no compiler inlines one half of a new-delete pair.
int64_t AllocationCount();

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_UNIT_CACHE_ALLOCATION_COUNTER_H_
