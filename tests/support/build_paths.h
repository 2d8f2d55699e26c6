#pragma once

namespace paceline::test {

// Where this build lies. In one file of its own, so that the other objects are the same wherever a build lies, and a
// compiler cache knows them.
extern const char kSourceDir[];
extern const char kBuildDir[];
extern const char kPacelineBinary[];
extern const char kSanitizeFlags[];  // "-fsanitize=..." or nothing
// "" without the examples.
extern const char kFashionMnistBinary[];
extern const char kCharLmBinary[];

}  // namespace paceline::test
