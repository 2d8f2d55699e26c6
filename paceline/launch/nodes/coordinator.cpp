// Node 0 of a job over several hosts: lets the others in, tells them their ranks, watches them, and says in the end how
// the job has ended.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/exit_codes.h"
#include "paceline/base/random_bytes.h"
#include "paceline/launch/failure/rank_query.h"
#include "paceline/launch/nodes/control_channel.h"
#include "paceline/launch/nodes/join_request.h"
#include "paceline/launch/nodes/messages.h"
#include "paceline/launch/nodes/nodes.h"
#include "paceline/launch/port_holder.h"
#include "paceline/launch/resources.h"
#include "paceline/net/acceptor.h"
#include "paceline/net/tcp_socket.h"

namespace paceline::launch {
namespace {

constexpr std::chrono::seconds kNoticePeriod{5};
// After the grace: SIGTERM, SIGKILL and looking for what is left, on a host that still answers.
constexpr std::chrono::seconds kToFinish{30};

std::vector<UniqueFd> listen_at(const std::vector<SocketAddress>& addresses);

class Coordinator final : public JobNodes {
 public:
  explicit Coordinator(const RunOptions& options)
      : options_(options),
        nodes_(*options.nodes),
        join_request_(make_join_request(options)),
        job_(nodes_.job.empty() ? random_digits(1) : nodes_.job),
        secret_(nodes_.secret ? *nodes_.secret : Secret::random()) {
    std::vector<UniqueFd> listeners = listen_at(nodes_.addresses);
    for (const UniqueFd& listener : listeners) addresses_.push_back(local_address(listener.get()));
    std::vector<SocketAddress> for_store;
    for (const SocketAddress& address : addresses_) for_store.push_back(address.with_port(0));
    store_.emplace(StoreOverTcp{.addresses = for_store, .ports = nodes_.ports, .secret = secret_});
    channels_.emplace(Acceptor(std::move(listeners), nodes_.secret.value_or(no_secret())));
    master_ = reserve_port(addresses_.front(), master_port_);
    join_request_.bind = nodes_.bind.empty() ? addresses_.front().host() : nodes_.bind;
    tell_where();
  }

  int fd() const override { return channels_->fd(); }
  std::optional<Nanoseconds> due() const override;
  void advance() override;
  std::vector<std::string> take_lines() override { return std::exchange(lines_, {}); }
  const std::optional<Placement>& placement() const override { return placement_; }
  const std::optional<JobOutcome>& job_outcome() const override { return job_outcome_; }
  void worker_ended(const WorkerEnd&) override {}  // its supervisor announces what all should know
  void ranks_wait(Nanoseconds waited) override;
  bool take_question() override { return std::exchange(asked_, false); }
  void answer(const std::vector<RankView>& views) override {
    rank_query_.add(0, views_from(to_json(views, join_request_.host, now()), now()));
  }
  void pass_on(const UserSignal& signal) override { tell_all(to_json(signal)); }
  std::vector<UserSignal> take_signals() override { return std::exchange(signals_, {}); }
  void announce(const JobOutcome& job_outcome) override;
  void finished(const LastErrors&) override { finished_ = Deadline(options_.grace_after_signal() + kToFinish); }
  bool all_finished() const override;
  std::optional<JobOutcome> outcome() const override { return std::nullopt; }
  StoreServer* store() override { return &*store_; }
  std::string rendezvous() const override { return addresses_.front().text(); }
  std::vector<WorkerEnd> take_ends() override { return std::exchange(ends_, {}); }
  const LastErrors& last_errors() const override { return last_errors_; }
  void conclude(const JobOutcome& outcome) override;

 private:
  struct Caller {
    SocketAddress own, peer;
  };
  struct Node {
    int line;
    JoinRequest join_request;
    Caller caller;
    int first_rank = 0;
    bool finished = false, lost = false;

    bool waited_for() const { return !finished && !lost; }
    std::string who() const { return join_request.who(caller.peer.host()); }
  };

  void tell_where();
  void handle(const LineEvent& event);
  void meet(int line, const nlohmann::json& message);
  void refuse(int line, const std::string& why);
  void hear(Node& node, const nlohmann::json& message);
  void lose(int line, const std::string& why);
  void tell_all(const nlohmann::json& message);
  void begin();
  void notice();
  void give_up();
  std::vector<int> missing() const;
  std::string store_for(const Node& node) const;
  Node* node_at(int line);

  const RunOptions& options_;
  const NodeOptions& nodes_;
  JoinRequest join_request_;
  const std::string job_;
  const Secret secret_;
  std::vector<SocketAddress> addresses_;
  std::optional<StoreServer> store_;
  std::optional<ControlChannels> channels_;
  UniqueFd master_;
  int master_port_ = 0;
  std::map<int, Caller> callers_;  // by line: they have not said who they are
  std::map<int, Node> others_;     // by node
  const Deadline deadline_{nodes_.join_timeout};
  Deadline next_notice_{kNoticePeriod};
  std::optional<Placement> placement_;
  std::optional<JobOutcome> job_outcome_;
  std::vector<WorkerEnd> ends_;
  LastErrors last_errors_;
  std::vector<std::string> lines_;
  RankQuery rank_query_;
  bool asked_ = false;
  std::vector<UserSignal> signals_;
  bool announced_ = false;
  std::optional<Deadline> finished_;
};

std::vector<UniqueFd> listen_at(const std::vector<SocketAddress>& addresses) {
  std::vector<UniqueFd> listeners;
  std::uint16_t port = addresses.front().port();
  for (const SocketAddress& address : addresses) {
    try {
      listeners.push_back(listen_on(address, PortRange::only(port), SOMAXCONN));
    } catch (const Error& error) {
      const std::string holder = port == 0 ? "" : port_holder(address.with_port(port));
      if (holder.empty()) {
        throw Error(ErrorCode::System,
                    fmt::format("{}. Node 0 has to run on the host that --rendezvous names", error.message()));
      }
      throw Error(ErrorCode::System, fmt::format("port {} of {} is in use by {}; end that, or choose another port with "
                                                 "--rendezvous (0: any that is free)",
                                                 port, address.host(), holder));
    }
    port = local_address(listeners.back().get()).port();  // the same for all
  }
  return listeners;
}

void Coordinator::tell_where() {
  if (nodes_.count == 1) return;
  const int others = nodes_.count - 1;
  const std::string at = addresses_.front().text();
  std::string text =
      fmt::format("paceline: node 0 listens at {} for {} other node{}", at, others, others == 1 ? "" : "s");
  if (nodes_.remotes.empty()) {
    if (nodes_.made_secret) {
      text += fmt::format(
          ". Made a secret for this job; copy it to the other hosts first:\n  scp {} HOST:{}\nand start "
          "there",
          nodes_.secret_file, nodes_.secret_file);
    } else {
      text += "; start there";
    }
    for (int node = 1; node < nodes_.count; ++node) {
      text += fmt::format("\n  paceline run --nnodes {} --node-rank {} --rendezvous {} -n {} {}", nodes_.count, node,
                          at, options_.workers, nodes_.command_tail);
      if (node == 3 && nodes_.count > 5) {
        text += fmt::format("\n  ... and so on, to --node-rank {}", nodes_.count - 1);
        break;
      }
    }
  }
  lines_.push_back(text);
}

std::optional<Nanoseconds> Coordinator::due() const {
  if (finished_ && announced_ && !all_finished()) return std::max(finished_->left(), Nanoseconds(0));
  if (placement_ || job_outcome_) return rank_query_.due();
  return std::max(std::min(next_notice_.left(), deadline_.left()), Nanoseconds(0));
}

void Coordinator::advance() {
  for (const LineEvent& event : channels_->take_events()) handle(event);
  if (finished_ && announced_ && finished_->passed()) {
    for (auto& [number, node] : others_) {
      if (node.waited_for()) lose(node.line, "its workers did not end within the time that they have");
    }
  }
  if (const auto table = rank_query_.take()) {
    lines_.push_back(*table);
    tell_all({{"kind", "say"}, {"text", *table}});
  }
  if (const auto& why = rank_query_.why_none_goes_on(); why && !job_outcome_) job_outcome_ = standstill_outcome(*why);
  if (placement_ || job_outcome_) return;
  if (missing().empty()) begin();
  else if (deadline_.passed()) give_up();
  else if (next_notice_.passed()) notice();
}

void Coordinator::handle(const LineEvent& event) {
  Node* const node = node_at(event.line);
  switch (event.kind) {
    case LineEvent::Kind::Opened: {
      // Where no secret is needed, others of this machine must still not join.
      const std::string why = nodes_.secret ? "" : why_not_ours(socket_owner(*event.peer, *event.own));
      if (!why.empty()) return refuse(event.line, why);
      callers_.insert({event.line, {*event.own, *event.peer}});
      return;
    }
    case LineEvent::Kind::Message:
      try {
        if (node != nullptr) return hear(*node, event.message);
        if (callers_.contains(event.line)) return meet(event.line, event.message);
      } catch (const std::exception& error) {  // of the JSON library, or Corrupt
        if (node != nullptr) return lose(event.line, fmt::format("it says what nobody understands: {}", error.what()));
        callers_.erase(event.line);
        channels_->close(event.line);
      }
      return;
    case LineEvent::Kind::Closed: callers_.erase(event.line); return lose(event.line, event.why);
    case LineEvent::Kind::Silent:
      if (callers_.erase(event.line) != 0) channels_->close(event.line);
      return lose(event.line, silence_text(event.why));
  }
}

void Coordinator::meet(int line, const nlohmann::json& message) {
  const JoinRequest join_request = join_request_from(message);
  const Caller caller = callers_.at(line);
  const std::string address = caller.peer.host();
  if (const std::string why = incompatibility(join_request_, join_request, address); !why.empty())
    return refuse(line, why);
  const auto earlier = others_.find(join_request.node);
  if (earlier != others_.end() && earlier->second.join_request.token != join_request.token) {
    return refuse(line,
                  fmt::format("there are two launchers with --node-rank {}: host {} at {} joined first, then came "
                              "host {} at {}",
                              join_request.node, earlier->second.join_request.host, earlier->second.caller.peer.text(),
                              join_request.host, caller.peer.text()));
  }
  if (placement_) return refuse(line, fmt::format("job {} runs already, with all of its nodes", job_));
  if (earlier != others_.end()) channels_->close(earlier->second.line);  // it lost that connection
  callers_.erase(line);
  others_.insert_or_assign(join_request.node, Node{.line = line, .join_request = join_request, .caller = caller});
  channels_->send(line, {{"kind", "joined"}, {"job", job_}});
  if (const std::string odd = oddity(join_request_, join_request, address); !odd.empty())
    lines_.push_back("paceline: " + odd);
  if (!missing().empty()) notice();
}

void Coordinator::refuse(int line, const std::string& why) {
  lines_.push_back("paceline: sent a launcher away: " + why);
  channels_->send(line, {{"kind", "refused"}, {"text", why}});
  channels_->close(line);
  callers_.erase(line);
}

void Coordinator::hear(Node& node, const nlohmann::json& message) {
  const auto kind = message["kind"].get<std::string>();
  if (kind == "end") {
    WorkerEnd end = end_from(message);
    if (end.rank < node.first_rank || end.rank >= node.first_rank + node.join_request.workers) {
      return lose(node.line, fmt::format("it speaks of rank {}, which is not its own", end.rank));
    }
    end.node = node.who();
    ends_.push_back(std::move(end));
  } else if (kind == "leave") {
    if (!job_outcome_) job_outcome_ = outcome_from(message);
  } else if (kind == "waits") {
    ranks_wait(waiting_time(message));
  } else if (kind == "ranks") {
    rank_query_.add(node.join_request.node, views_from(message.at("ranks"), now()));
  } else if (kind == "signal") {
    const UserSignal signal{.number = signal_from(message).number, .node = node.join_request.node};
    signals_.push_back(signal);
    tell_all(to_json(signal));
  } else if (kind == "finished") {
    node.finished = true;
    for (const auto& [rank, errors] : errors_from(message)) last_errors_[rank] = errors;
  }
}

void Coordinator::lose(int line, const std::string& why) {
  Node* const node = node_at(line);
  if (node == nullptr || node->lost) return;
  channels_->close(line);
  if (!placement_) {
    lines_.push_back(fmt::format("paceline: {} has left while others were waited for: {}", node->who(), why));
    others_.erase(node->join_request.node);
    return;
  }
  node->lost = true;
  if (node->finished) return;
  const std::string text = fmt::format("{} is lost: {}", node->who(), why);
  if (job_outcome_) lines_.push_back("paceline: " + text);
  else
    job_outcome_ =
        JobOutcome{.text = text, .exit_code = kExitUnavailable, .rank = node->first_rank, .fault = Fault::HostLost};
}

void Coordinator::begin() {
  int rank = options_.workers;
  for (auto& [number, node] : others_) {
    node.first_rank = rank;
    rank += node.join_request.workers;
  }
  placement_ = Placement{.node = 0,
                         .nodes = nodes_.count,
                         .first_rank = 0,
                         .world_size = rank,
                         .who = join_request_.who(addresses_.front().host()),
                         .job = job_,
                         .store_address = store_->address(),
                         .master_address = addresses_.front().host(),
                         .master_port = master_port_,
                         .bind = join_request_.bind,
                         .secret = secret_};
  for (const auto& [number, node] : others_) {
    channels_->send(node.line, {{"kind", "welcome"},
                                {"who", node.who()},
                                {"zero", placement_->who},
                                {"first_rank", node.first_rank},
                                {"world_size", rank},
                                {"store", store_for(node)},
                                {"master_address", placement_->master_address},
                                {"master_port", master_port_},
                                // Only over loopback, to launchers of the same user.
                                {"secret", nodes_.secret ? "" : secret_.hex()}});
  }
  lines_.push_back(fmt::format("paceline: all {} nodes have joined, with {} workers", nodes_.count, rank));
}

void Coordinator::notice() {
  next_notice_ = Deadline(kNoticePeriod);
  const auto who = missing();
  lines_.push_back(fmt::format("paceline: {} of {} nodes have joined; waiting for node{} {} ({:.0f} s left)",
                               others_.size() + 1, nodes_.count, who.size() == 1 ? "" : "s", fmt::join(who, ", "),
                               std::max(seconds(deadline_.left()), 0.0)));
}

void Coordinator::give_up() {
  std::vector<std::string> there{join_request_.who(addresses_.front().host())};
  for (const auto& [number, node] : others_) there.push_back(node.who());
  const auto who = missing();
  job_outcome_ = JobOutcome{
      .text = fmt::format("node{} {} did not join within {} s; there were {}. Was `paceline run` started on all hosts, "
                          "and can they reach {}?",
                          who.size() == 1 ? "" : "s", fmt::join(who, ", "), nodes_.join_timeout.count(),
                          fmt::join(there, ", "), addresses_.front().text()),
      .exit_code = kExitUnavailable,
      .fault = Fault::NotAllJoined};
}

void Coordinator::ranks_wait(Nanoseconds waited) {
  if (!placement_ || !rank_query_.begin(waited, nodes_.count)) return;
  asked_ = true;
  tell_all({{"kind", "where"}});
}

void Coordinator::announce(const JobOutcome& job_outcome) {
  if (!std::exchange(announced_, true)) tell_all(to_json("leave", job_outcome));
}

void Coordinator::tell_all(const nlohmann::json& message) {
  for (const auto& [number, node] : others_) {
    if (!node.lost) channels_->send(node.line, message);
  }
}

bool Coordinator::all_finished() const {
  return finished_ &&
         std::none_of(others_.begin(), others_.end(), [](const auto& entry) { return entry.second.waited_for(); });
}

void Coordinator::conclude(const JobOutcome& outcome) { tell_all(to_json("over", outcome)); }

std::vector<int> Coordinator::missing() const {
  std::vector<int> nodes;
  for (int node = 1; node < nodes_.count; ++node) {
    if (!others_.contains(node)) nodes.push_back(node);
  }
  return nodes;
}

std::string Coordinator::store_for(const Node& node) const {
  // On the address by which it came, since that is known to work.
  const auto same = [&](const SocketAddress& address) { return address.host() == node.caller.own.host(); };
  const auto at = std::find_if(addresses_.begin(), addresses_.end(), same);
  const auto index = at == addresses_.end() ? 0 : static_cast<std::size_t>(at - addresses_.begin());
  return store_->tcp_addresses()[index];
}

Coordinator::Node* Coordinator::node_at(int line) {
  const auto found =
      std::find_if(others_.begin(), others_.end(), [&](const auto& entry) { return entry.second.line == line; });
  return found == others_.end() ? nullptr : &found->second;
}

}  // namespace

std::unique_ptr<JobNodes> make_coordinator(const RunOptions& options) { return std::make_unique<Coordinator>(options); }

}  // namespace paceline::launch
