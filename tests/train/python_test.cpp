// What save() writes, read by Python, which knows the format and nothing of ours.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/build_paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/saved_job.h"

namespace paceline {
namespace {

using nlohmann::json;

const std::pair<torch::ScalarType, const char*> kTypes[] = {
    {torch::kFloat64, "F64"}, {torch::kFloat32, "F32"}, {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"},
    {torch::kInt64, "I64"},   {torch::kInt32, "I32"},   {torch::kInt16, "I16"},   {torch::kInt8, "I8"},
    {torch::kUInt8, "U8"},    {torch::kBool, "BOOL"}};

/// A buffer of each type, a transposed one, a scalar, an empty one, and a parameter with two names.
struct AllTypes : torch::nn::Module {
  torch::Tensor weight;
  AllTypes() {
    weight = register_parameter("weight", torch::arange(6.0f).view({2, 3}) / 7);
    register_parameter("tied", weight);
    for (const auto& [type, name] : kTypes) register_buffer(name, (torch::arange(-3, 4) * 17).to(type));
    register_buffer("transposed", torch::arange(12.0f).view({3, 4}).t());
    register_buffer("scalar", torch::tensor(std::int64_t{1} << 53));
    register_buffer("empty", torch::zeros({0, 4}));
  }
};

json read_by_python(const std::filesystem::path& checkpoint, const std::filesystem::path& out) {
  const std::string command = std::string("python3 '") + test::kSourceDir + "/tests/support/read_checkpoint.py' '" +
                              checkpoint.string() + "' > '" + out.string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream stream(out);
  return json::parse(stream);
}

void expect_tensor(const json& read, const torch::Tensor& wanted, const std::string& dtype) {
  EXPECT_EQ(read.at("dtype"), dtype);
  EXPECT_EQ(read.at("shape"), json(wanted.sizes().vec()));
  const auto flat = wanted.detach().contiguous().view(-1);
  ASSERT_EQ(read.at("values").size(), static_cast<std::size_t>(flat.numel()));
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const json& value = read.at("values")[static_cast<std::size_t>(i)];
    const double number = value.is_boolean() ? value.get<bool>() : value.get<double>();
    EXPECT_EQ(number, flat[i].to(torch::kDouble).item<double>()) << dtype << " " << i;
  }
}

TEST(Python, ReadsAllThatACheckpointHolds) {
  const TemporaryFolder folder;
  test::on_ranks(2, ThreadEngine::SharedMemory, [&](const Comm& comm) {
    AllTypes model;
    DistributedDataParallel ddp(model, comm);
    Optimizer<torch::optim::Adam> optimizer(ddp, {model.weight}, torch::optim::AdamOptions(0.1));
    model.weight.square().sum().backward();
    optimizer.step();
    if (comm.rank() == 1) model.named_buffers()["I32"].add_(1);  // each rank's own
    const auto path = save(folder.path / "saves", ddp, {});
    if (comm.rank() != 0) return;
    const json files = read_by_python(path, folder.path / "read.json");
    ASSERT_EQ(files.size(), 4u);
    const json& tensors = files.at("model.safetensors").at("tensors");
    const auto buffers = model.named_buffers();
    for (const auto& [type, name] : kTypes) expect_tensor(tensors.at(name), buffers[name], name);
    expect_tensor(tensors.at("weight"), model.weight, "F32");
    expect_tensor(tensors.at("transposed"), buffers["transposed"], "F32");
    expect_tensor(tensors.at("scalar"), buffers["scalar"], "I64");
    expect_tensor(tensors.at("empty"), buffers["empty"], "F32");
    EXPECT_EQ(tensors.size(), std::size(kTypes) + 4);
    EXPECT_EQ(files.at("model.safetensors").at("metadata"), json({{"tied", "weight"}}));
    for (const auto& moment : state_of(optimizer, ddp.replica().parameters).tensors) {
      expect_tensor(files.at("optimizer-0.safetensors").at("tensors").at(moment.name), moment.tensor, "F32");
    }
    expect_tensor(files.at("rank-00001.safetensors").at("tensors").at("buffer.I32"), buffers["I32"] + 1, "I32");
    expect_tensor(files.at("rank-00000.safetensors").at("tensors").at("buffer.I32"), buffers["I32"], "I32");
  });
}

}  // namespace
}  // namespace paceline
