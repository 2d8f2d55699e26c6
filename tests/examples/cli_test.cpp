// The example as a user meets it: whatever is wrong gives one line that says what to do, and a job leaves a report.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/build_paths.h"

namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kPixels = 784;  // 28 x 28

struct Outcome {
  int status;
  std::string out, err;
};

/// A folder of its own for each test.
class ExampleCli : public testing::Test {
 protected:
  ExampleCli() {
    auto name = (fs::temp_directory_path() / "paceline-example-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
    data_ = folder_ / "data";
    fs::create_directory(data_);
  }
  ~ExampleCli() override { fs::remove_all(folder_); }

  Outcome run(const std::string& command) const {
    const auto out = folder_ / "stdout", err = folder_ / "stderr";
    const int status = std::system((command + " >" + out.string() + " 2>" + err.string() + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  Outcome run_example(const std::string& arguments) const {
    return run(fmt::format("{} {}", paceline::test::kFashionMnistBinary, arguments));
  }
  Outcome run_two_workers(const std::string& arguments) const {
    return run(fmt::format("{} run -n 2 -- {} {}", paceline::test::kPacelineBinary, paceline::test::kFashionMnistBinary,
                           arguments));
  }

  static std::string read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// Images of one grey each, which is what their label says: learnt at once.
  void write_images(const std::string& part, std::size_t count) const {
    Bytes images = header({0, 0, 8, 3}, {count, 28, 28}), labels = header({0, 0, 8, 1}, {count});
    for (std::size_t i = 0; i < count; ++i) {
      images.insert(images.end(), kPixels, static_cast<std::uint8_t>(25 * (i % 10)));
      labels.push_back(static_cast<std::uint8_t>(i % 10));
    }
    write_gzip(data_ / (part + "-images-idx3-ubyte.gz"), images);
    write_gzip(data_ / (part + "-labels-idx1-ubyte.gz"), labels);
  }
  void write_data(std::size_t training, std::size_t test) const {
    write_images("train", training);
    write_images("t10k", test);
  }

  static Bytes header(Bytes magic, const std::vector<std::size_t>& shape) {
    for (const std::size_t side : shape) {
      for (int shift = 24; shift >= 0; shift -= 8) magic.push_back(static_cast<std::uint8_t>(side >> shift));
    }
    return magic;
  }
  static void write_gzip(const fs::path& file, const Bytes& bytes) {
    gzFile out = gzopen(file.c_str(), "wb");
    ASSERT_NE(out, nullptr);
    ASSERT_EQ(gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(out), Z_OK);
  }
  static Bytes read_gzip(const fs::path& file) {
    gzFile in = gzopen(file.c_str(), "rb");
    Bytes bytes(1 << 20);
    bytes.resize(static_cast<std::size_t>(gzread(in, bytes.data(), static_cast<unsigned>(bytes.size()))));
    gzclose(in);
    return bytes;
  }

  static void expect_one_line(const Outcome& outcome, int status, const std::string& text) {
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  }

  fs::path folder_, data_;
};

TEST_F(ExampleCli, BadUseIsExitStatus64) {
  expect_one_line(run_example("--batch-size 0"), 64, "--batch-size");
  expect_one_line(run_example("--batch-size -3"), 64, "--batch-size");
  expect_one_line(run_example("--batch-size 18446744073709551616"), 64, "--batch-size");
  expect_one_line(run_example("--seed -1"), 64, "--seed");
  expect_one_line(run_example("--lr nan"), 64, "--lr");
  expect_one_line(run_example("--epochs 0"), 64, "--epochs");
  expect_one_line(run_example("--epochs 1.5"), 64, "--epochs");
  expect_one_line(run_example("--steps many"), 64, "--steps");
  expect_one_line(run_example("--model alexnet"), 64, "resnet18");
  expect_one_line(run_example("--no-such-option"), 64, "--no-such-option");
}

TEST_F(ExampleCli, MissingFolderNamesThePackage) {
  expect_one_line(run_example("--data /nowhere"), 1, "there is no folder /nowhere");
  EXPECT_NE(run_example("--data /nowhere").err.find("apt-get install dataset-fashion-mnist"), std::string::npos);
}

TEST_F(ExampleCli, MissingFileIsNamed) {
  expect_one_line(run_example("--data " + data_.string()), 1, "train-images-idx3-ubyte.gz: No such file");
}

TEST_F(ExampleCli, UnwritableReportFolderIsFoundBeforeTraining) {
  write_data(20, 10);
  const auto path = (data_ / "train-images-idx3-ubyte.gz/report").string();  // below a file: not even root can write
  expect_one_line(run_example("--data " + data_.string() + " --report " + path), 1, path);
}

TEST_F(ExampleCli, MissingBaselineIsNamed) {
  expect_one_line(run_example("--synthetic --baseline /nowhere/report.json"), 1, "/nowhere/report.json");
}

TEST_F(ExampleCli, MoreWorkersThanImages) {
  write_data(1, 10);
  const auto outcome = run_two_workers("--data " + data_.string());
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE((outcome.out + outcome.err).find("sample"), std::string::npos) << outcome.out << outcome.err;
}

/// Damage to one file of a data set, and what the message says of it.
struct Damage {
  std::string name, file;
  std::function<void(Bytes&)> of_content;     // of what is inside the gzip file
  std::function<void(Bytes&)> of_compressed;  // of the gzip file itself
  std::string message;
};

class DamagedData : public ExampleCli, public testing::WithParamInterface<Damage> {};

TEST_P(DamagedData, IsOneLineThatNamesTheFile) {
  write_data(20, 10);
  const auto& damage = GetParam();
  const auto file = data_ / damage.file;
  if (damage.of_content) {
    auto bytes = read_gzip(file);
    damage.of_content(bytes);
    write_gzip(file, bytes);
  }
  if (damage.of_compressed) {
    const auto text = read(file);
    Bytes bytes(text.begin(), text.end());
    damage.of_compressed(bytes);
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  const auto outcome = run_example("--data " + data_.string());
  expect_one_line(outcome, 1, file.string() + " is damaged: " + damage.message);
  EXPECT_NE(outcome.err.find("apt-get install --reinstall dataset-fashion-mnist"), std::string::npos);
}

const std::string kImages = "train-images-idx3-ubyte.gz", kLabels = "train-labels-idx1-ubyte.gz";
const Damage kDamages[] = {
    {"Empty", kImages, {}, [](Bytes& b) { b.clear(); }, "it ends too early"},
    {"NotGzip", kImages, {}, [](Bytes& b) { b = {'P', 'K', 3, 4, 5, 6, 7, 8, 9}; }, "gzip says"},
    {"GzipCutInData", kImages, {}, [](Bytes& b) { b.resize(b.size() / 2); }, "it ends too early"},
    {"GzipCutInChecksum", kImages, {}, [](Bytes& b) { b.resize(b.size() - 3); }, "it ends too early"},
    {"ChecksumWrong", kImages, {}, [](Bytes& b) { b[b.size() - 8] ^= 1; }, "gzip says"},
    {"BytesAfterGzip", kImages, {}, [](Bytes& b) { b.push_back(0); }, "bytes follow after its end"},
    {"MagicOfLabels", kImages, [](Bytes& b) { b[3] = 1; }, {}, "its magic number is 0x00000801, not 0x00000803"},
    {"MagicOfFloats", kLabels, [](Bytes& b) { b[2] = 13; }, {}, "its magic number is 0x00000d01, not 0x00000801"},
    {"HeaderOnly", kImages, [](Bytes& b) { b.resize(10); }, {}, "it ends too early"},
    {"OtherSize", kImages, [](Bytes& b) { b[11] = 32; }, {}, "it has images of 32 pixels a side, not 28"},
    {"ImageMissing", kImages, [](Bytes& b) { b.resize(b.size() - kPixels); }, {}, "it ends too early"},
    {"TooManyPromised", kImages, [](Bytes& b) { b[4] = 255; }, {}, "it is too small"},
    {"BytesAfterImages", kImages, [](Bytes& b) { b.push_back(0); }, {}, "it has more bytes than its header says"},
    {"LabelMissing", kLabels, [](Bytes& b) { b[7] = 19, b.pop_back(); }, {}, "it has 19 labels for the 20 images"},
    {"LabelTooLarge", kLabels, [](Bytes& b) { b[8 + 7] = 10; }, {}, "label 10 of image 7 is not in 0 to 9"},
    {"TestLabels", "t10k-labels-idx1-ubyte.gz", [](Bytes& b) { b.back() = 255; }, {}, "label 255 of image 9"},
};
INSTANTIATE_TEST_SUITE_P(Each, DamagedData, testing::ValuesIn(kDamages),
                         [](const auto& damage) { return damage.param.name; });

TEST_F(ExampleCli, TwoWorkersTrainAndLeaveAReport) {
  write_data(200, 50);
  const auto report_folder = folder_ / "runs/first";
  const auto outcome =
      run_two_workers("--data " + data_.string() + " --batch-size 10 --steps 25 --report " + report_folder.string());
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const auto report = nlohmann::json::parse(read(report_folder / "report.json"));

  EXPECT_EQ(report.at("schema"), "paceline.report/1");
  EXPECT_EQ(report.at("run").at("world"), 2);
  EXPECT_EQ(report.at("run").at("steps"), 25);
  for (const auto* key : {"id", "hosts", "started", "warmup_steps"}) EXPECT_TRUE(report.at("run").contains(key)) << key;
  EXPECT_EQ(report.at("config").at("model"), "cnn");
  EXPECT_EQ(report.at("config").at("parameters"), 421738);
  EXPECT_EQ(report.at("config").at("batch_per_rank"), 10);
  EXPECT_EQ(report.at("config").at("optimizer"), "sgd");
  for (const auto* key : {"mode", "codec", "bucket_bytes"}) EXPECT_TRUE(report.at("config").contains(key)) << key;
  EXPECT_GT(report.at("throughput").at("samples_per_s"), 0);
  EXPECT_TRUE(report.at("throughput").at("speedup_vs_one").is_null());
  double parts_s = 0;
  for (const auto* part : {"data_wait", "forward", "backward", "exposed_comm", "optimizer", "other"}) {
    parts_s += report.at("breakdown_s").at(part).get<double>();
  }
  const double step_s = report.at("step_s").at("mean");
  EXPECT_NEAR(parts_s, step_s, 0.01 * step_s);
  for (const auto* key : {"p50", "p90", "p99"}) EXPECT_GT(report.at("step_s").at(key), 0) << key;
  EXPECT_TRUE(report.contains("hidden_comm_s"));
  EXPECT_GE(report.at("accuracy").at("test"), 0);
  EXPECT_LE(report.at("accuracy").at("test"), 1);
  EXPECT_EQ(report.at("memory").at("peak_bytes_per_rank").size(), 2);
  EXPECT_EQ(report.at("ranks").size(), 2);
}

TEST_F(ExampleCli, SpeedUpComesFromTheBaseline) {
  const auto one = (folder_ / "one").string(), two = (folder_ / "two").string();
  const std::string job = "--synthetic --model cnn --batch-size 4 --steps 8 --report ";
  const auto first = run_example(job + one);
  ASSERT_EQ(first.status, 0) << first.err;
  const auto second = run_example(job + two + " --baseline " + one);
  ASSERT_EQ(second.status, 0) << second.err;
  const auto report = [](const fs::path& folder) { return nlohmann::json::parse(read(folder / "report.json")); };
  EXPECT_EQ(report(two).at("run").at("steps"), 8);  // the last one ends although no evaluation follows
  const auto rate = [&](const fs::path& folder) { return report(folder).at("throughput"); };
  const double expected = rate(two).at("samples_per_s").get<double>() / rate(one).at("samples_per_s").get<double>();
  EXPECT_NEAR(rate(two).at("speedup_vs_one").get<double>(), expected, 1e-6 * expected);
}

}  // namespace
