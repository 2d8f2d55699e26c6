// The character model as a user meets it: workers agree with each other, whatever the split, and a job goes on where it
// ended.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "tests/support/build_paths.h"
#include "tests/support/launched_job.h"

namespace paceline {
namespace {

/// A text that can be learnt from: words of few letters in an order that is drawn from a seed.
std::filesystem::path write_text(const TemporaryFolder& folder) {
  const std::vector<std::string> words{"and ", "the ", "lord ", "said ", "unto ", "him\n"};
  std::mt19937_64 random(3);
  std::string text;
  while (text.size() < 20'000) text += words[random() % words.size()];
  std::ofstream(folder.path / "text") << text;
  return folder.path / "text";
}

std::string run(int workers, const std::vector<std::string>& arguments, int status = 0) {
  std::vector<std::string> command{"run", "-n", std::to_string(workers), "--", test::kCharLmBinary};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Job job(command);
  EXPECT_EQ(job.wait(), status) << job.out() << job.err();
  return job.out() + job.err();
}

std::vector<std::string> small(const std::filesystem::path& text, std::vector<std::string> more) {
  std::vector<std::string> arguments{"--text",  text.string(), "--width",   "16", "--layers", "1",
                                     "--heads", "2",           "--context", "16", "--lr",     "0.01"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

double held_out_loss(const std::string& printed) {
  const std::string mark = "held-out loss ";
  const auto at = printed.find(mark);
  EXPECT_NE(at, std::string::npos) << printed;
  return at == std::string::npos ? std::nan("") : std::stod(printed.substr(at + mark.size()));
}

TEST(CharLm, WorkersAndAccumulationAgreeWithOneWorker) {
  const TemporaryFolder folder;
  const auto text = write_text(folder);
  const double one = held_out_loss(run(1, small(text, {"--steps", "20", "--batch-size", "8"})));
  EXPECT_LT(one, 2.6) << "it has learnt something: 15 characters at random are log 15 = 2.71 nats";
  EXPECT_NEAR(held_out_loss(run(2, small(text, {"--steps", "20", "--batch-size", "4"}))), one, 2e-4);
  EXPECT_NEAR(held_out_loss(run(2, small(text, {"--steps", "20", "--batch-size", "2", "--accumulate", "2"}))), one,
              2e-4);
  const double clipped = held_out_loss(run(1, small(text, {"--steps", "20", "--batch-size", "8", "--clip", "1e-10"})));
  EXPECT_GT(clipped, one + 0.02) << "gradients below AdamW's epsilon hardly move anything";
}

TEST(CharLm, GoesOnWhereItEnded) {
  const TemporaryFolder folder;
  const auto text = write_text(folder);
  const auto checkpoints = (folder.path / "checkpoints").string();
  const std::vector<std::string> common{"--batch-size", "4", "--save-every", "8", "--checkpoints", checkpoints};
  auto arguments = [&](const std::string& steps) {
    auto all = small(text, common);
    all.insert(all.end(), {"--steps", steps});
    return all;
  };
  const double straight = held_out_loss(run(2, small(text, {"--steps", "16", "--batch-size", "4"})));
  run(2, arguments("8"));
  const std::string resumed = run(2, arguments("16"));
  EXPECT_NE(resumed.find("going on from " + checkpoints + "/save-000001"), std::string::npos) << resumed;
  EXPECT_EQ(held_out_loss(resumed), straight);
  const std::string nothing_left = run(2, arguments("16"));
  EXPECT_EQ(held_out_loss(nothing_left), straight) << "the same command again has nothing to do";
}

TEST(CharLm, LearnsFromTheKingJamesBible) {
  const std::string printed = run(
      2, {"--steps", "2", "--batch-size", "1", "--width", "8", "--layers", "1", "--heads", "1", "--context", "512"});
  const double loss = held_out_loss(printed);
  EXPECT_GT(loss, 2.5);
  EXPECT_LT(loss, std::log(80.0));
}

TEST(CharLm, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  EXPECT_NE(run(1, {"--text", (folder.path / "none").string()}, 1).find("cannot read"), std::string::npos);
  EXPECT_NE(run(1, {"--heads", "3"}, 64).find("must divide --width"), std::string::npos);
  EXPECT_NE(run(1, {"--accumulate", "0"}, 64).find("--accumulate"), std::string::npos);
}

}  // namespace
}  // namespace paceline
