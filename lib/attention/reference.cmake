# The float64 twin that the tests compare with. The product does not link it.
attnserve_add_library(reference
    SOURCES reference.cc reference_positions.cc
    PUBLIC attnserve::base)
