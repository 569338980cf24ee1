// GNUstep's headers ask for libobjc2's header of this name when blocks are on; with GCC's libobjc
// blocks come from libBlocksRuntime.
#include <Block.h>
