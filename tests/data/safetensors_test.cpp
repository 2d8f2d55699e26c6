// The strict reader and writer of safetensors files, and folders of checkpoints.
#include "paceline/data/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "paceline/base/crc32c.h"
#include "paceline/base/durable_file.h"
#include "paceline/base/error.h"
#include "paceline/base/read_file.h"
#include "paceline/data/checkpoint_folder.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes, std::uint64_t length) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(length >> 8 * i & 0xFF));
  for (const char c : header) bytes.push_back(static_cast<std::byte>(c));
  bytes.resize(bytes.size() + data_bytes);
  return bytes;
}
std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

std::string refusal(std::vector<std::byte> bytes) {
  try {
    parse_safetensors(std::move(bytes), "x.safetensors");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Corrupt);
    return error.message();
  }
}

TEST(Safetensors, RefusesWhatIsNotExactlyRight) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(refusal(file_of(good, 8)), "");
  EXPECT_EQ(refusal(file_of(good + "   ", 8)), "") << "padding is allowed";
  EXPECT_EQ(refusal(file_of("{}", 0)), "");
  const std::vector<std::pair<std::vector<std::byte>, std::string>> cases = {
      {{}, "shorter than its header's length"},
      {std::vector<std::byte>(7), "shorter than its header's length"},
      {file_of(good, 8, 1000), "reach past its end"},
      {file_of(good, 8, ~0ull), "larger than 16 MiB"},
      {file_of(good, 8, (16u << 20) + 1), "larger than 16 MiB"},
      {file_of("", 0), "does not begin with '{'"},
      {file_of("[1]", 0), "does not begin with '{'"},
      {file_of(" " + good, 8), "does not begin with '{'"},
      {file_of("{\"a\"", 0), "parse error"},
      {file_of("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8), "UTF-8"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "'a' stands there twice"},
      {file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "'dtype' stands there twice"},
      {file_of(R"({"a":{"dtype":"F32","shape":[[[[[2]]]]],"data_offsets":[0,8]}})", 8), "nested too deeply"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", 8), "not dtype, shape"},
      {file_of(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), "type 'F31' is not known"},
      {file_of(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8), "no list"},
      {file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "'-2' is no size"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8), "'2.0' is no size"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8), "not two"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "outside of the file"},
      {file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 8), "outside of the file"},
      {file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "its data have 8 bytes, its shape 12"},
      {file_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8),
       "larger than any memory"},
      {file_of(R"({"a":{"dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0]}})", 0),
       "larger than any memory"},
      {file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,0,4],"data_offsets":[0,0]}})", 0),
       "larger than any memory"},
      {file_of(std::string(100'000, '['), 0), "does not begin with '{'"},
      {file_of(R"({"a":)" + std::string(100'000, '['), 0), "nested too deeply"},
      {file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "leave a gap or overlap"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "leave a gap or overlap"},
      {file_of(good, 9), "bytes follow the last tensor"},
      {file_of(R"({"__metadata__":{"k":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "type must be string"},
  };
  for (const auto& [bytes, wanted] : cases) {
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find("x.safetensors is no sound safetensors file"), std::string::npos) << wanted;
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
  }
}

// Each byte of a file changed in turn is refused, or changes only what it stands for.
TEST(Safetensors, NoSingleByteCanHurtTheReader) {
  const auto good = file_of(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})",
      16);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int flip = 1; flip < 256; flip <<= 1) {
      auto bytes = good;
      bytes[at] ^= static_cast<std::byte>(flip);
      try {
        const SafetensorsFile file = parse_safetensors(bytes, "x");
        std::size_t total = 0;
        for (const StoredTensor& tensor : file.tensors) total += tensor.data.size();
        EXPECT_EQ(total, 16u);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Corrupt);
      }
    }
    if (at == 0) continue;
    EXPECT_NE(refusal({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)}), "") << "cut at " << at;
  }
}

std::string header_of(std::size_t tensors) {
  std::string header = "{";
  for (std::size_t i = 0; i < tensors; ++i) {
    header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  return header + "}";
}

double least_cpu_seconds(const std::function<void()>& action) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double before = now();
    action();
    least = std::min(least, now() - before);
  }
  return least;
}

// Eight times as many tensors take eight times as long, not 64 times.
TEST(Safetensors, TheTimeToReadAHeaderGrowsWithItsLength) {
  const auto few = file_of(header_of(1000), 0), many = file_of(header_of(8000), 0);
  const double for_few = least_cpu_seconds([&] { EXPECT_EQ(parse_safetensors(few, "x").tensors.size(), 1000u); });
  const double for_many = least_cpu_seconds([&] { EXPECT_EQ(parse_safetensors(many, "x").tensors.size(), 8000u); });
  EXPECT_LT(for_many, 24 * for_few);
}

/// A float, a scalar and an empty tensor.
struct Values {
  std::vector<float> numbers{1.5f, -2.0f, 3.25f, 0.0f, 5.0f, 6.0f};
  std::int64_t scalar = -7;
  std::vector<StoredTensor> tensors() const {
    return {{"weights", "F32", {2, 3}, std::as_bytes(std::span(numbers))},
            {"count", "I64", {}, std::as_bytes(std::span(&scalar, 1))},
            {"none", "F16", {0, 4}, {}}};
  }
};

TEST(Safetensors, ReadsWhatItWrote) {
  const TemporaryFolder folder;
  const Values values;
  const fs::path path = folder.path / "x.safetensors";
  const WrittenFile written = write_safetensors(path, values.tensors(), {{"made by", "a \"test\""}});
  EXPECT_EQ(written.bytes, fs::file_size(path));
  const SafetensorsFile file = read_safetensors(path);
  EXPECT_EQ(file.metadata.at("made by"), "a \"test\"");
  ASSERT_EQ(file.tensors.size(), 3u);
  for (const StoredTensor& wanted : values.tensors()) {
    const auto found = std::find_if(file.tensors.begin(), file.tensors.end(),
                                    [&](const StoredTensor& tensor) { return tensor.name == wanted.name; });
    ASSERT_NE(found, file.tensors.end());
    EXPECT_EQ(found->dtype, wanted.dtype);
    EXPECT_EQ(found->shape, wanted.shape);
    EXPECT_TRUE(std::equal(found->data.begin(), found->data.end(), wanted.data.begin(), wanted.data.end()));
  }
}

// A reader of a few lines that knows nothing of ours: length, JSON, values.
TEST(Safetensors, PythonReadsIt) {
  const TemporaryFolder folder;
  const Values values;
  const fs::path path = folder.path / "x.safetensors";
  write_safetensors(path, values.tensors());
  std::ofstream(folder.path / "read.py") << R"(
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    data = file.read()
def values(name, code):
    begin, end = header[name]["data_offsets"]
    return list(struct.unpack("<%d%s" % ((end - begin) // struct.calcsize(code), code), data[begin:end]))
assert header["weights"]["dtype"] == "F32" and header["weights"]["shape"] == [2, 3], header
assert values("weights", "f") == [1.5, -2.0, 3.25, 0.0, 5.0, 6.0], values("weights", "f")
assert values("count", "q") == [-7] and header["count"]["shape"] == []
assert header["none"]["shape"] == [0, 4] and values("none", "e") == []
)";
  const std::string command = "python3 '" + (folder.path / "read.py").string() + "' '" + path.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Safetensors, RefusesToWriteNonsenseAndLeavesNoFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "x.safetensors";
  const Values values;
  auto twice = values.tensors();
  twice[1].name = "weights";
  EXPECT_THROW(write_safetensors(path, twice), Error);
  auto wrong = values.tensors();
  wrong[0].shape = {7};
  EXPECT_THROW(write_safetensors(path, wrong), Error);
  EXPECT_TRUE(fs::is_empty(folder.path));
  std::ofstream(path) << "there already";
  EXPECT_THROW(write_safetensors(path, values.tensors()), Error);
  EXPECT_EQ(fs::file_size(path), 13u) << "never overwritten";
}

// ---- Folders

fs::path checkpoint(const fs::path& folder, const std::string& text, std::size_t keep = 2) {
  const fs::path part = begin_checkpoint(folder);
  DurableFile file(part / "a");
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  return commit_checkpoint(part, {.files = {{"a", file.bytes(), file.checksum()}}, .contents = R"({"text":"hi"})"},
                           keep);
}

TEST(CheckpointFolder, KeepsTheNewestAndNumbersOn) {
  const TemporaryFolder folder;
  const fs::path at = folder.path / "not" / "there" / "yet";
  EXPECT_TRUE(checkpoints(at).empty());
  for (int i = 0; i < 4; ++i) checkpoint(at, "x");
  const auto all = checkpoints(at);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].filename(), "save-000004");
  EXPECT_EQ(all[1].filename(), "save-000003");
  EXPECT_EQ(verify_checkpoint(all[0]).contents, R"({"text":"hi"})");
  checkpoint(at, "x", 0);
  EXPECT_EQ(checkpoints(at).size(), 1u) << "the new one stays";
}

TEST(CheckpointFolder, UnfinishedOnesAreNotSeenAndAreRemoved) {
  const TemporaryFolder folder;
  checkpoint(folder.path, "x");
  const fs::path part = begin_checkpoint(folder.path);
  std::ofstream(part / "a") << "half";
  EXPECT_EQ(checkpoints(folder.path).size(), 1u);
  const fs::path again = begin_checkpoint(folder.path);
  EXPECT_EQ(again, part) << "its number is free";
  EXPECT_TRUE(fs::is_empty(again));
}

TEST(CheckpointFolder, FindsEveryDamage) {
  const auto damaged = [](auto damage) -> std::string {
    const TemporaryFolder folder;
    const fs::path path = checkpoint(folder.path, "some text");
    damage(path);
    try {
      verify_checkpoint(path);
      return "";
    } catch (const Error& error) {
      return error.message();
    }
  };
  const auto change = [](const fs::path& file, std::size_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char c = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(c);
  };
  EXPECT_EQ(damaged([](const fs::path&) {}), "");
  EXPECT_NE(damaged([&](const fs::path& p) { change(p / "a", 3); }).find("checksum is wrong"), std::string::npos);
  EXPECT_NE(damaged([](const fs::path& p) { fs::resize_file(p / "a", 4); }).find("has 4 bytes where 9"),
            std::string::npos);
  EXPECT_NE(damaged([](const fs::path& p) { fs::remove(p / "a"); }).find("cannot open"), std::string::npos);
  EXPECT_NE(
      damaged([](const fs::path& p) { fs::resize_file(p / "manifest.json", 40); }).find("manifest.json is damaged"),
      std::string::npos);
  for (const char* part : {"hi", "\"bytes\": 9"}) {
    EXPECT_NE(damaged([&](const fs::path& p) {
                std::ifstream stream(p / "manifest.json");
                const std::string text((std::istreambuf_iterator<char>(stream)), {});
                change(p / "manifest.json", text.find(part) + std::strlen(part) - 1);
              }).find("manifest.json is damaged"),
              std::string::npos)
        << part;
  }
}

/// What verify_checkpoint() says of a checkpoint whose manifest has these `files` and `contents`, in JSON, and a right
/// checksum.
std::string outcome_of_manifest(const fs::path& checkpoint, const std::string& files, const std::string& contents) {
  const std::string body =
      R"({"contents":)" + contents + R"(,"files":)" + files + R"(,"format":"paceline.checkpoint/1"})";
  const std::uint32_t checksum = crc32c(std::as_bytes(std::span(body)));
  std::ofstream(checkpoint / "manifest.json") << R"({"body":)" << body << R"(,"crc32c":)" << checksum << "}";
  try {
    verify_checkpoint(checkpoint);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Corrupt) << error.message();
    return error.message();
  }
}

std::string file_entry(const std::string& name) { return R"({"bytes":0,"crc32c":0,"name":")" + name + R"("})"; }

TEST(CheckpointFolder, AManifestIsRefusedWhenItIsNestedDeeply) {
  const TemporaryFolder folder;
  const fs::path at = checkpoint(folder.path, "");
  EXPECT_EQ(outcome_of_manifest(at, "[]", "{}"), "");
  const std::string lists = std::string(100'000, '[') + std::string(100'000, ']');
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  objects += "1" + std::string(100'000, '}');
  for (const std::string& deep : {lists, objects}) {
    EXPECT_NE(outcome_of_manifest(at, "[]", deep).find("nested too deeply"), std::string::npos);
    EXPECT_NE(outcome_of_manifest(at, deep, "{}").find("nested too deeply"), std::string::npos);
  }
}

TEST(CheckpointFolder, AManifestNamesFilesOfItsOwnFolderOnly) {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "outside");
  const fs::path at = checkpoint(folder.path, "");
  std::ofstream(at / "manifest.json.of.another");
  fs::create_directory(at / "sub");
  std::ofstream(at / "sub" / "x");
  EXPECT_EQ(outcome_of_manifest(at, "[" + file_entry("a") + "]", "{}"), "");
  const std::string absolute = (folder.path / "outside").string();
  for (const std::string& name :
       std::initializer_list<std::string>{"../outside", absolute, "sub/x", "/dev/null", "", ".", "..", "a\\u0000b"}) {
    const std::string outcome = outcome_of_manifest(at, "[" + file_entry(name) + "]", "{}");
    EXPECT_NE(outcome.find("is no name of a file in this folder"), std::string::npos) << name << ": " << outcome;
  }
  EXPECT_NE(outcome_of_manifest(at, "[" + file_entry("a") + "," + file_entry("a") + "]", "{}").find("names 'a' twice"),
            std::string::npos);
}

TEST(CheckpointFolder, WhatIsNoRegularFileIsRefusedAtOnce) {
  const TemporaryFolder folder;
  const fs::path at = checkpoint(folder.path, "");
  const std::string files = "[" + file_entry("a") + "]";
  const auto outcome = [&] { return outcome_of_manifest(at, files, "{}"); };
  const auto expect_refusal = [&](const char* what) {
    EXPECT_NE(outcome().find("a is no regular file"), std::string::npos) << what << ": " << outcome();
    fs::remove(at / "a");
  };
  fs::remove(at / "a");
  ASSERT_EQ(::mkfifo((at / "a").c_str(), 0600), 0);
  expect_refusal("a FIFO that nobody writes to");
  fs::create_directory(at / "a");
  expect_refusal("a folder");
  fs::create_symlink("/dev/zero", at / "a");
  expect_refusal("a link to a device");
  std::ofstream(folder.path / "outside");
  fs::create_symlink("../outside", at / "a");
  expect_refusal("a link to a file of another folder");
  fs::remove(at / "manifest.json");
  ASSERT_EQ(::mkfifo((at / "manifest.json").c_str(), 0600), 0);
  EXPECT_THROW(verify_checkpoint(at), Error);
}

TEST(CheckpointFolder, AFileLargerThanTheManifestSaysIsNotRead) {
  const TemporaryFolder folder;
  const fs::path at = checkpoint(folder.path, "");
  fs::resize_file(at / "a", std::uintmax_t{1} << 42);  // of holes: no memory holds it
  EXPECT_NE(outcome_of_manifest(at, "[" + file_entry("a") + "]", "{}").find("has 4398046511104 bytes where 0"),
            std::string::npos);
}

// Folders left by hand, or by something that copied half of one.
TEST(CheckpointFolder, AFolderThatIsNoCheckpointNeverCostsAGoodOne) {
  for (const char* bogus : {"save-000009", "save-99999999", "save-999999999999999999"}) {
    SCOPED_TRACE(bogus);
    const TemporaryFolder folder;
    checkpoint(folder.path, "1");
    fs::create_directory(folder.path / bogus);
    std::ofstream(folder.path / bogus / "manifest.json") << "{";
    const auto sound = [&] {
      std::vector<fs::path> found;
      for (const fs::path& path : checkpoints(folder.path)) {
        try {
          verify_checkpoint(path);
          found.push_back(path);
        } catch (const Error&) {
        }
      }
      return found;
    };
    const fs::path second = checkpoint(folder.path, "2", 2);
    ASSERT_EQ(sound().size(), 2u);
    EXPECT_EQ(sound()[0], second) << "the newest is seen";
    const fs::path third = checkpoint(folder.path, "3", 1);
    ASSERT_EQ(sound().size(), 1u);
    EXPECT_EQ(sound()[0], third);
    EXPECT_TRUE(fs::exists(folder.path / bogus)) << "it is not ours to remove";
  }
}

TEST(CheckpointFolder, OfTwoJobsThatSaveIntoOneFolderTheSecondIsRefused) {
  const TemporaryFolder folder;
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(done[1]);
    char byte = 0;
    try {
      begin_checkpoint(folder.path);
      byte = 1;
    } catch (const Error&) {
    }
    [[maybe_unused]] const auto told = ::write(ready[1], &byte, 1);
    [[maybe_unused]] const auto waited = ::read(done[0], &byte, 1);  // until the test closes its end
    ::_exit(0);
  }
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 1);
  try {
    begin_checkpoint(folder.path);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_NE(error.message().find("another job saves there"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(std::to_string(other)), std::string::npos) << error.message();
  }
  EXPECT_TRUE(fs::exists(folder.path / "save-000001.part")) << "the other's is left alone";
  ::close(done[1]);
  ASSERT_EQ(::waitpid(other, nullptr, 0), other);
  EXPECT_EQ(begin_checkpoint(folder.path).filename(), "save-000001.part") << "the other is gone";
  for (const int fd : {ready[0], done[0]}) ::close(fd);
}

TEST(CheckpointFolder, TheLockFollowsNoLink) {
  const TemporaryFolder folder;
  fs::create_symlink(folder.path / "elsewhere", folder.path / ".paceline-lock");
  EXPECT_THROW(begin_checkpoint(folder.path), Error);
  EXPECT_FALSE(fs::exists(folder.path / "elsewhere"));
}

TEST(CheckpointFolder, AFullDiskIsAnErrorThatNamesTheFile) {
  EXPECT_THROW(DurableFile("/dev/full/x"), Error);
  const TemporaryFolder folder;
  const fs::path path = folder.path / "x";
  {
    DurableFile file(path);
    file.write({});
  }
  EXPECT_FALSE(fs::exists(path)) << "what is not finished is removed";
}

}  // namespace
}  // namespace paceline
