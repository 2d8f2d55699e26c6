#include "paceline/launch/failure/rank_query.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "paceline/launch/failure/standstill.h"
#include "paceline/launch/failure/watch.h"
#include "paceline/launch/nodes/heartbeat_message.h"

namespace paceline::launch {
namespace {

// What the table shows. Of many ranks only the last, so that a message stays within its limit.
constexpr std::size_t kOperations = 4, kManyRanks = 128;

double age(Nanoseconds since, Nanoseconds at) { return seconds(at - since); }

Nanoseconds since(const nlohmann::json& age, Nanoseconds at) {
  const std::chrono::duration<double> passed(std::clamp(age.get<double>(), 0.0, 1e8));
  return at - std::chrono::duration_cast<Nanoseconds>(passed);
}

}  // namespace

nlohmann::json to_json(const std::vector<RankView>& views, const std::string& host, Nanoseconds at) {
  nlohmann::json list = nlohmann::json::array();
  const std::size_t most = views.size() > kManyRanks ? 1 : kOperations;
  for (const RankView& view : views) {
    nlohmann::json operations = nlohmann::json::array();
    for (std::size_t i = 0; i < std::min(most, view.operations.size()); ++i) {
      const OperationView& one = view.operations[i];
      operations.push_back({{"number", one.number},
                            {"communicator", one.communicator},
                            {"communicator_id", one.communicator_id},
                            {"text", one.text},
                            {"done", one.done},
                            {"waits", one.waits},
                            {"waited", one.waits ? age(one.waits_from, at) : 0}});
    }
    nlohmann::json communicators = nlohmann::json::array();
    for (const CommunicatorView& one : view.communicators) {
      communicators.push_back({one.id, one.members, one.entered});
    }
    list.push_back({{"rank", view.rank},
                    {"host", host},
                    {"pid", view.pid},
                    {"state", view.ended ? "ended" : process_state(view.pid)},
                    {"ended", view.ended},
                    {"beats", view.beats},
                    {"beat_age", seconds(view.beat_age)},
                    {"step", view.step},
                    {"unclear", view.unclear},
                    {"communicators", communicators},
                    {"operations", operations}});
  }
  return list;
}

std::vector<RankView> views_from(const nlohmann::json& list, Nanoseconds at) {
  std::vector<RankView> views;
  for (const auto& from : list) {
    RankView view{.rank = int_at(from, "rank"), .pid = int_at(from, "pid")};
    view.host = from.at("host").get<std::string>();
    view.state = from.at("state").get<std::string>();
    view.ended = from.at("ended").get<bool>();
    view.beats = from.at("beats").get<bool>();
    view.beat_age = at - since(from.at("beat_age"), at);
    view.step = from.at("step").get<std::uint64_t>();
    view.unclear = from.at("unclear").get<bool>();
    for (const auto& one : from.at("communicators")) {
      view.communicators.push_back(
          {one.at(0).get<std::uint64_t>(), one.at(1).get<std::uint64_t>(), one.at(2).get<std::uint64_t>()});
    }
    for (const auto& operation : from.at("operations")) {
      OperationView one;
      one.number = operation.at("number").get<std::uint64_t>();
      one.communicator = operation.at("communicator").get<std::string>();
      one.communicator_id = operation.at("communicator_id").get<std::uint64_t>();
      one.text = operation.at("text").get<std::string>();
      one.done = operation.at("done").get<bool>();
      one.waits = operation.at("waits").get<bool>();
      one.waits_from = since(operation.at("waited"), at);
      view.operations.push_back(std::move(one));
    }
    views.push_back(std::move(view));
  }
  return views;
}

bool RankQuery::begin(Nanoseconds waited, int hosts) {
  if (until_) return false;
  until_ = Deadline(kPatience);
  waited_ = waited;
  hosts_ = static_cast<std::size_t>(hosts);
  answers_.clear();
  return true;
}

void RankQuery::add(int node, std::vector<RankView> views) {
  if (until_) answers_.insert_or_assign(node, std::move(views));
}

std::optional<std::string> RankQuery::take() {
  const bool complete = answers_.size() >= hosts_;
  if (!until_ || (!complete && !until_->passed())) return std::nullopt;
  until_.reset();
  std::vector<RankView> all;
  for (auto& [node, views] : std::exchange(answers_, {})) {
    all.insert(all.end(), std::make_move_iterator(views.begin()), std::make_move_iterator(views.end()));
  }
  if (complete) standstill_ = standstill(all, now(), 2 * kPatience);
  // Each host sees by itself that its ranks wait in vain, and they may have come at different times.
  const auto waited_in = most_waited_in(all);
  if (!waited_in || waited_in == told_) return std::nullopt;
  told_ = waited_in;
  return stuck_text(all, now(), waited_, complete);
}

std::optional<Nanoseconds> RankQuery::due() const {
  if (!until_) return std::nullopt;
  return std::max(until_->left(), Nanoseconds(0));
}

}  // namespace paceline::launch
