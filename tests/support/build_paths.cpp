#include "tests/support/build_paths.h"

namespace paceline::test {

const char kSourceDir[] = PACELINE_SOURCE_DIR;
const char kBuildDir[] = PACELINE_BUILD_DIR;
const char kPacelineBinary[] = PACELINE_BINARY;
const char kSanitizeFlags[] = PACELINE_SANITIZE_FLAGS;
const char kFashionMnistBinary[] = PACELINE_EXAMPLE_FASHION_MNIST;
const char kCharLmBinary[] = PACELINE_EXAMPLE_CHAR_LM;

}  // namespace paceline::test
