// What Comm::from_env() makes of variables that mean nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "paceline/comm/comm.h"

namespace paceline {
namespace {

using Variables = std::map<std::string, std::string>;

void expect_refused(const Variables& variables, const std::string& named) {
  Variables all{{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"PACELINE_STORE", "unix:@nobody"}, {"PACELINE_TIMEOUT", "1"}};
  for (const auto& [name, value] : variables) all[name] = value;
  for (const auto& [name, value] : all) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    (void)Comm::from_env();
    ADD_FAILURE() << named << "=" << all[named] << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    EXPECT_NE(error.message().find(named + "=" + all[named]), std::string::npos) << error.what();
  }
  for (const auto& [name, value] : all) ::unsetenv(name.c_str());
}

TEST(Environment, NumbersThatAreNoneAreRefused) {
  for (const char* name : {"RANK", "WORLD_SIZE", "PACELINE_TIMEOUT"}) {
    for (const char* value : {"-1", "1x", " 1", "0x1", "99999999999999999999", "2147483648", "1.5"}) {
      expect_refused({{name, value}}, name);
    }
  }
}

}  // namespace
}  // namespace paceline
