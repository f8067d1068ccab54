#include "export.h"

// The digest of the sources that this library is made from
EXPORT const char* samplehold_digest() { return DIGEST; }
