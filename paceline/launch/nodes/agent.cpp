// A node other than 0 of a job over several hosts: looks for node 0, joins, and does with its workers what node 0 says.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/launch/failure/rank_query.h"
#include "paceline/launch/nodes/control_channel.h"
#include "paceline/launch/nodes/heartbeat_message.h"
#include "paceline/launch/nodes/join_request.h"
#include "paceline/launch/nodes/messages.h"
#include "paceline/launch/nodes/nodes.h"
#include "paceline/launch/nodes/reconnector.h"
#include "paceline/launch/port_holder.h"
#include "paceline/net/tcp_socket.h"

namespace paceline::launch {
namespace {

/// Of the other side of a connection.
std::string why_not_ours(int socket) {
  const SocketAddress peer = peer_address(socket);
  if (const auto owner = socket_owner(peer, local_address(socket))) return launch::why_not_ours(owner);
  // Another user's node 0 has sent this user away already. Who listens there proves nothing, but may say why.
  const auto listener = listener_owner(peer);
  return launch::why_not_ours(listener == ::geteuid() ? std::nullopt : listener);
}

constexpr std::chrono::seconds kFirstNotice{2}, kNoticePeriod{5};

class Agent final : public JobNodes {
 public:
  explicit Agent(const RunOptions& options)
      : nodes_(*options.nodes), join_request_(make_join_request(options)), channels_(std::nullopt) {
    look_for_coordinator();
  }

  int fd() const override { return reconnector_ ? reconnector_->fd() : channels_.fd(); }
  std::optional<Nanoseconds> due() const override;
  void advance() override;
  std::vector<std::string> take_lines() override { return std::exchange(lines_, {}); }
  const std::optional<Placement>& placement() const override { return placement_; }
  const std::optional<JobOutcome>& job_outcome() const override { return job_outcome_; }
  void worker_ended(const WorkerEnd& end) override { channels_.send(line_, to_json(end)); }
  void ranks_wait(Nanoseconds waited) override { channels_.send(line_, waiting_message(waited)); }
  bool take_question() override { return std::exchange(asked_, false); }
  void answer(const std::vector<RankView>& views) override {
    channels_.send(line_, {{"kind", "ranks"}, {"ranks", to_json(views, join_request_.host, now())}});
  }
  void pass_on(const UserSignal& signal) override { channels_.send(line_, to_json(signal)); }
  std::vector<UserSignal> take_signals() override { return std::exchange(signals_, {}); }
  void announce(const JobOutcome& job_outcome) override;
  void finished(const LastErrors& errors) override { channels_.send(line_, to_json(errors)); }
  bool all_finished() const override { return line_ < 0 || outcome_.has_value(); }
  std::optional<JobOutcome> outcome() const override { return outcome_ ? outcome_ : job_outcome_; }
  StoreServer* store() override { return nullptr; }
  std::string rendezvous() const override { return nodes_.rendezvous; }
  std::vector<WorkerEnd> take_ends() override { return {}; }
  const LastErrors& last_errors() const override { return no_errors_; }
  void conclude(const JobOutcome&) override {}

 private:
  void look_for_coordinator();
  void join(Reconnector::Result result);
  void handle(const LineEvent& event);
  void hear(const nlohmann::json& message);
  void lose_coordinator(const std::string& why);

  const NodeOptions& nodes_;
  JoinRequest join_request_;
  const Deadline deadline_{nodes_.join_timeout};
  ControlChannels channels_;
  std::optional<Reconnector> reconnector_;
  Deadline next_notice_{kFirstNotice};
  int line_ = -1;
  std::string coordinator_, job_;
  std::optional<Placement> placement_;
  std::optional<JobOutcome> job_outcome_, outcome_;
  std::vector<std::string> lines_;
  bool asked_ = false;
  std::vector<UserSignal> signals_;
  const LastErrors no_errors_;
};

std::optional<Nanoseconds> Agent::due() const {
  if (!reconnector_) return std::nullopt;
  return std::max(next_notice_.left(), Nanoseconds(0));
}

void Agent::advance() {
  if (reconnector_) {
    if (auto result = reconnector_->take()) {
      reconnector_.reset();
      join(std::move(*result));
    } else if (next_notice_.passed()) {
      next_notice_ = Deadline(kNoticePeriod);
      lines_.push_back(fmt::format("paceline: node {} looks for node 0 at {} ({}); for {:.0f} s more", nodes_.rank,
                                   nodes_.rendezvous, reconnector_->last_reason(),
                                   std::max(seconds(deadline_.left()), 0.0)));
    }
  }
  for (const LineEvent& event : channels_.take_events()) {
    if (event.line == line_) handle(event);
  }
}

void Agent::look_for_coordinator() {
  line_ = -1;
  reconnector_.emplace(nodes_.addresses, nodes_.secret.value_or(no_secret()), deadline_);
}

void Agent::join(Reconnector::Result result) {
  if (!result.socket) {
    const std::string text =
        result.other_secret
            ? fmt::format(
                  "node 0 at {} does not let this node in: it has another secret ({}). Is it another job's, or "
                  "is --secret-file missing?",
                  nodes_.rendezvous, result.why)
            : fmt::format(
                  "node 0 was not found at {} within {} s: {}. Was it started there, and can this host reach "
                  "it?",
                  nodes_.rendezvous, nodes_.join_timeout.count(), result.why);
    job_outcome_ = JobOutcome{.text = text, .exit_code = result.other_secret ? kExitMismatch : kExitUnavailable};
    return;
  }
  // Whoever took the port first would get the command line, and what the workers say.
  const std::string not_ours = nodes_.secret ? "" : why_not_ours(result.socket.get());
  if (!not_ours.empty()) {
    job_outcome_ = JobOutcome{
        .text = fmt::format("what listens at {} is not known to be this job's node 0: {}", nodes_.rendezvous, not_ours),
        .exit_code = kExitMismatch};
    return;
  }
  try {
    join_request_.bind = nodes_.bind.empty() ? local_address(result.socket.get()).host() : nodes_.bind;
    line_ = channels_.add(std::move(result.socket));
    channels_.send(line_, to_json(join_request_));
  } catch (const Error&) {
    look_for_coordinator();  // the connection has gone already
  }
}

void Agent::handle(const LineEvent& event) {
  switch (event.kind) {
    case LineEvent::Kind::Opened: return;
    case LineEvent::Kind::Message: try { hear(event.message);
      } catch (const std::exception& error) {  // of the JSON library, or Corrupt
        lose_coordinator(fmt::format("it says what nobody understands: {}", error.what()));
      }
      return;
    case LineEvent::Kind::Closed: return lose_coordinator(event.why);
    case LineEvent::Kind::Silent: return lose_coordinator(silence_text(event.why));
  }
}

void Agent::hear(const nlohmann::json& message) {
  const auto kind = message.at("kind").get<std::string>();
  if (kind == "refused") {
    job_outcome_ = JobOutcome{.text = message.at("text").get<std::string>(), .exit_code = kExitMismatch};
    outcome_ = job_outcome_;
  } else if (kind == "joined") {
    job_ = message.at("job").get<std::string>();
    lines_.push_back(fmt::format("paceline: node {} has joined job {} at {}", nodes_.rank, job_, nodes_.rendezvous));
  } else if (kind == "welcome") {
    const auto given = message.at("secret").get<std::string>();
    coordinator_ = message.at("zero").get<std::string>();
    placement_ = Placement{.node = nodes_.rank,
                           .nodes = nodes_.count,
                           .first_rank = int_at(message, "first_rank"),
                           .world_size = int_at(message, "world_size"),
                           .who = message.at("who").get<std::string>(),
                           .job = job_,
                           .store_address = message.at("store").get<std::string>(),
                           .master_address = message.at("master_address").get<std::string>(),
                           .master_port = int_at(message, "master_port"),
                           .bind = join_request_.bind,
                           .secret = given.empty() ? nodes_.secret : Secret::from_hex(given)};
  } else if (kind == "leave") {
    if (!job_outcome_) job_outcome_ = outcome_from(message);
  } else if (kind == "where") {
    asked_ = true;
  } else if (kind == "signal") {
    const UserSignal signal = signal_from(message);
    if (signal.node != nodes_.rank) signals_.push_back(signal);  // its own comes back
  } else if (kind == "say") {
    // Where one terminal shows all hosts' output, node 0 has said it there.
    if (!nodes_.ends_with_input) lines_.push_back(message.at("text").get<std::string>());
  } else if (kind == "over") {
    outcome_ = outcome_from(message);
  }
}

// Before the job runs, the connection may break and be made again.
void Agent::lose_coordinator(const std::string& why) {
  channels_.close(line_);
  if (outcome_) return;
  if (!placement_ && !job_outcome_) return look_for_coordinator();
  line_ = -1;
  if (!job_outcome_) {
    job_outcome_ = JobOutcome{.text = fmt::format("{} is lost: {}", coordinator_, why),
                              .exit_code = kExitUnavailable,
                              .rank = 0,
                              .fault = Fault::HostLost};
  }
}

void Agent::announce(const JobOutcome& job_outcome) { channels_.send(line_, to_json("leave", job_outcome)); }

}  // namespace

std::unique_ptr<JobNodes> make_agent(const RunOptions& options) { return std::make_unique<Agent>(options); }

}  // namespace paceline::launch
