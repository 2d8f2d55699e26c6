#include "paceline/comm/tcp/transport.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "paceline/base/cpu.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

constexpr Nanoseconds kLookUp = std::chrono::milliseconds(20);
constexpr Nanoseconds kPatience = std::chrono::seconds(2);  // for a cause that another rank is about to write

std::string encode(const Error& error) {
  return fmt::format("{} {} {} {} {}", static_cast<int>(error.fault()), error.rank(), error.peer(),
                     static_cast<int>(error.cause()), error.message());
}

/// What encode() made, as an error of `rank`. Another rank wrote it: what it cannot mean is left out.
Error decode(const std::string& text, int rank, int world_size) {
  int numbers[4] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int& number : numbers) {
    at = std::from_chars(at, end, number).ptr;
    if (at != end) ++at;
  }
  const auto known = [&](int number) { return number >= 0 && number < world_size ? number : Error::kNoRank; };
  const Cause cause = numbers[3] == static_cast<int>(Cause::First) ? Cause::First : Cause::Consequence;
  const bool numbered = numbers[0] > 100 && numbers[0] < 800;
  return Error(numbered ? static_cast<Fault>(numbers[0]) : Fault::GaveUp, std::string(at, end), known(numbers[1]),
               known(numbers[2]), cause)
      .heard_by(rank);
}

}  // namespace

TcpTransport::TcpTransport(TcpGroup group, std::shared_ptr<Store> store, std::string name,
                           std::shared_ptr<const JobStatus> job_status)
    : group_(std::move(group)),
      store_(std::move(store)),
      job_status_(std::move(job_status)),
      name_(std::move(name)),
      oversubscribed_(group_.ranks_here > usable_cpus()),
      links_(group_.sockets.size()),
      entered_(group_.sockets.size()),
      polled_(group_.sockets.size()),
      in_flight_(group_.sockets.size()) {
  for (int peer = 0; peer < world_size(); ++peer) {
    UniqueFd& socket = group_.sockets[static_cast<std::size_t>(peer)];
    if (peer != rank()) link(peer) = TcpLink(std::move(socket), rank(), peer, group_.generation, kEagerBytes);
    polled_[static_cast<std::size_t>(peer)] = {link(peer).fd(), 0, 0};
  }
}

void TcpTransport::enter(const Call& call, std::span<const EagerPayload> eager_payloads,
                         const WaitPolicy& wait_policy) {
  if (failed_.load(std::memory_order_acquire)) check();
  entered_[static_cast<std::size_t>(rank())] = call;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    const EagerPayload& eager_payload = eager_payloads[static_cast<std::size_t>(peer)];
    Call told = call;
    told.message_bytes = eager_payload.message.size();
    link(peer).expect_call();
    link(peer).send(FrameKind::Call, told, eager_payload.eager ? eager_payload.message : std::span<const std::byte>());
  }
  until_done(wait_policy, [&] {
    bool moved = false, done = true;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      if (link(peer).sending()) moved |= push(peer);
      if (!link(peer).has_call()) moved |= pull_call(peer);
      waits_for(peer) = static_cast<short>((link(peer).sending() ? POLLOUT : 0) | (link(peer).has_call() ? 0 : POLLIN));
      done &= waits_for(peer) == 0;
    }
    return done ? Pass::Done : moved ? Pass::Moved : Pass::Idle;
  });
}

bool TcpTransport::push(int peer) {
  const TcpLink::Event event = link(peer).push();
  if (event == TcpLink::Event::Lost) lost(peer);
  return event != TcpLink::Event::Nothing;
}

bool TcpTransport::pull_call(int peer) {
  const TcpLink::Event event = link(peer).pull_call();
  if (event == TcpLink::Event::Lost || event == TcpLink::Event::Left) lost(peer);
  if (event == TcpLink::Event::Complete) entered_[static_cast<std::size_t>(peer)] = link(peer).call();
  return event != TcpLink::Event::Nothing;
}

void TcpTransport::run(Schedule& schedule, const WaitPolicy& wait_policy) {
  std::fill(in_flight_.begin(), in_flight_.end(), 0);
  until_done(wait_policy, [&] {
    bool moved = false;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      moved |= send_segment(schedule, peer);
      moved |= receive_segment(schedule, peer);
    }
    if (schedule.finished()) return Pass::Done;
    if (moved) return Pass::Moved;
    for (int peer = 0; peer < world_size(); ++peer) {
      const bool sends = in_flight_[static_cast<std::size_t>(peer)] != 0;
      const bool receives = peer != rank() && !schedule.next_incoming(peer).empty();
      waits_for(peer) = static_cast<short>((sends ? POLLOUT : 0) | (receives ? POLLIN : 0));
    }
    return Pass::Idle;
  });
}

bool TcpTransport::send_segment(Schedule& schedule, int peer) {
  char& in_flight = in_flight_[static_cast<std::size_t>(peer)];
  if (in_flight == 0) {
    const auto segment = schedule.next_outgoing(peer);
    if (segment.empty()) return false;
    link(peer).send(FrameKind::Segment, entered_[static_cast<std::size_t>(rank())], segment);
    in_flight = 1;
  }
  const bool moved = push(peer);
  if (!link(peer).sending()) {
    in_flight = 0;
    schedule.sent(peer);
  }
  return moved;
}

bool TcpTransport::receive_segment(Schedule& schedule, int peer) {
  const auto to = schedule.next_incoming(peer);
  if (to.empty()) return false;
  const TcpLink::Event event = link(peer).pull_segment(to);
  if (event == TcpLink::Event::Lost || event == TcpLink::Event::Left) lost(peer);
  if (event == TcpLink::Event::Complete) schedule.arrived(peer);
  return event != TcpLink::Event::Nothing;
}

// `move` does what can be done at once. Where that is nothing, it leaves what it waits for in polled_. The time limit
// counts from the last time that anything moved.
template <class Move>
void TcpTransport::until_done(const WaitPolicy& wait_policy, Move&& move) {
  bool idle = false;
  Nanoseconds since{}, looked{}, waited{};
  for (;;) {
    const Pass pass = move();
    if (pass == Pass::Done) return;
    if (pass == Pass::Moved) {
      idle = false;
      continue;
    }
    if (!std::exchange(idle, true)) {
      since = looked = now();
      waited = {};
    }
    if (now() - since < wait_policy.spin) {
      pause();
      continue;
    }
    if (failed_.load(std::memory_order_acquire)) check();
    if (job_status_ && job_status_->failed()) job_status_->check(rank(), describe_own());
    const Nanoseconds nap = std::clamp(wait_policy.timeout - waited, Nanoseconds(1), kLookUp);
    const timespec at_most{0, static_cast<long>(nap.count())};
    ::ppoll(polled_.data(), polled_.size(), &at_most, nullptr);
    // A look-up that took long is this rank's own absence (a suspended job), not a peer's.
    waited += std::min(now() - std::exchange(looked, now()), 5 * kLookUp);
    if (waited >= wait_policy.timeout) time_out(wait_policy.timeout);
  }
}

void TcpTransport::pause() const {
  if (oversubscribed_) sched_yield();
  else _mm_pause();
}

void TcpTransport::lost(int peer) {
  if (failed_.load(std::memory_order_acquire)) check();
  const std::string what = describe_own();
  if (link(peer).has_left()) {
    throw Error(Fault::PeerLeft,
                fmt::format("rank {} ended its communicator '{}' after {}, while rank {} waits for it in {}; do all "
                            "ranks run the same number of steps?",
                            peer, name_, where_is(peer), rank(), what),
                rank(), peer, Cause::Consequence);
  }
  if (job_status_) job_status_->await_failure(rank(), what);
  throw Error(Fault::ConnectionLost,
              fmt::format("rank {} (pid {} at {}) died or its connection broke after {}; rank {} saw it in {}. Its own "
                          "output or the launcher's summary says why",
                          peer, group_.pids[static_cast<std::size_t>(peer)],
                          group_.addresses[static_cast<std::size_t>(peer)], where_is(peer), rank(), what),
              rank(), peer, Cause::Consequence);
}

void TcpTransport::time_out(Nanoseconds timeout) {
  const auto waits = [](const pollfd& entry) { return entry.events != 0; };
  const auto late = std::find_if(polled_.begin(), polled_.end(), waits);
  const int peer = late == polled_.end() ? Error::kNoRank : static_cast<int>(late - polled_.begin());
  throw Error(ErrorCode::Timeout,
              fmt::format("rank {} waited {:.0f} s in {} for rank {}, which is at {}. If rank {} is only slow, raise "
                          "PACELINE_TIMEOUT (seconds)",
                          rank(), seconds(timeout), describe_own(), peer, where_is(peer), peer),
              rank(), peer);
}

std::string TcpTransport::where_is(int peer) const {
  if (peer < 0) return "no operation";
  const Signature& last = entered_[static_cast<std::size_t>(peer)].signature;
  return last.number == 0 ? "no operation yet" : describe(last);
}

std::string TcpTransport::describe_own() const {
  return describe(entered_[static_cast<std::size_t>(rank())].signature);
}

void TcpTransport::fail(const Error& cause) noexcept {
  const std::lock_guard one_at_a_time(failing_);
  if (failed_.load(std::memory_order_acquire)) return;
  {
    const Error first = agree_on_first(cause);
    const std::lock_guard lock(mutex_);
    failure_ = first;
  }
  failed_.store(true, std::memory_order_release);
  for (TcpLink& link : links_) link.shut_down();
}

Error TcpTransport::agree_on_first(const Error& cause) const {
  // Launchers said that, and the store may be on the host that is lost.
  if (cause.fault() == Fault::HostLost) return cause;
  const std::string key = fmt::format("tcp/{}/{:016x}/", name_, group_.generation);
  try {
    if (store_->add(key + "failures", 1) != 1)
      return decode(store_->get(key + "first", Deadline(kPatience)), rank(), world_size());
    store_->set(key + "first", encode(cause));
  } catch (const Error& of_the_job) {
    // Somebody told the store why before this rank saw the consequence: of this communicator, or only of the job.
    try {
      return decode(store_->get(key + "first", Deadline(Nanoseconds(0))), rank(), world_size());
    } catch (const Error&) {
    }
    try {
      if (job_status_)
        job_status_->check(rank(), describe_own());  // the launcher knows more than who wrote to the store first
    } catch (const Error& as_the_launcher_has_it) {
      return as_the_launcher_has_it;
    }
    // Else the store is not there.
    const bool told = of_the_job.cause() == Cause::Consequence;
    if (cause.cause() == Cause::Consequence && told) return of_the_job.heard_by(rank());
  }
  return cause.heard_by(rank());
}

void TcpTransport::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

void TcpTransport::leave() noexcept {
  if (failed_.load(std::memory_order_acquire)) return;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    link(peer).send(FrameKind::Leave, {}, {});
    // It is small, and the socket takes it; a peer that cannot be reached will not miss it.
    (void)link(peer).push();
  }
}

std::vector<LinkInfo> TcpTransport::links() const {
  std::vector<LinkInfo> all;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    tcp_info facts{};
    socklen_t length = sizeof facts;
    if (::getsockopt(link(peer).fd(), IPPROTO_TCP, TCP_INFO, &facts, &length) != 0) {
      throw system_error("cannot read TCP_INFO", errno);
    }
    all.push_back({peer, group_.addresses[static_cast<std::size_t>(peer)], facts.tcpi_rtt * 1e-6,
                   facts.tcpi_total_retrans, facts.tcpi_bytes_sent, facts.tcpi_bytes_received});
  }
  return all;
}

}  // namespace paceline
