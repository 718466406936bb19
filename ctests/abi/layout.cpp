// The same program in C++: one header serves both.
#include "layout.c"
