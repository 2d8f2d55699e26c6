#include "paceline/comm/tcp/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "paceline/base/error.h"
#include "paceline/base/random_bytes.h"
#include "paceline/comm/tcp/join_terms.h"
#include "paceline/net/acceptor.h"
#include "paceline/net/connect_authenticated.h"
#include "paceline/net/tcp_address.h"
#include "paceline/net/tcp_socket.h"
#include "paceline/store/exchange.h"
#include "paceline/store/store.h"

namespace paceline {
namespace {

std::string key(const std::string& name, const char* what, int rank) {
  return fmt::format("tcp/{}/{}/{}", name, what, rank);
}

Error damaged(const std::string& name, int rank, int peer, const std::string& what, const std::string& text) {
  return Error(ErrorCode::Corrupt,
               fmt::format("joining '{}': {} that rank {} left in the store are not what a rank of this build writes: "
                           "\"{}\"",
                           name, what, peer, text.substr(0, 100)),
               rank, peer);
}

TcpTerms agree_on_terms(Store& store, const std::string& name, int rank, const TcpOptions& options, Deadline deadline) {
  if (rank == 0) {
    if (!TcpTerms::is_all_reduce(options.all_reduce)) {
      throw Error(ErrorCode::InvalidArgument, "TcpOptions::all_reduce must be Auto, Direct or Ring", rank);
    }
    if (!TcpTerms::is_segment(options.segment_bytes)) {
      throw Error(ErrorCode::InvalidArgument,
                  "TcpOptions::segment_bytes must be a multiple of 64 from 4096 to 16777216", rank);
    }
    const TcpTerms terms{.generation = random_number(),
                         .segment_bytes = options.segment_bytes,
                         .all_reduce = options.all_reduce,
                         .secret = options.secret ? "" : Secret::random().hex()};
    store.set(key(name, "terms", 0), terms.text());
  }
  const std::string text = store.get(key(name, "terms", 0), deadline);
  const auto terms = TcpTerms::from_text(text);
  if (!terms) throw damaged(name, rank, 0, "the terms", text);
  return *terms;
}

std::string this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.empty() ? "unknown" : id;
}

/// Meets the other ranks: calls lower ones, lets higher ones in.
class Meeting {
 public:
  Meeting(Store& store, const std::string& name, TcpGroup& group, const Secret& secret, Deadline deadline)
      : store_(store), name_(name), group_(group), secret_(secret), deadline_(deadline) {}

  void call(int peer, const Whereabouts& at);
  /// All higher ranks.
  void let_in(Acceptor& acceptor);
  /// Hears who comes, for as long as this, and lets in the first higher rank. False if there was none.
  bool let_in_one(Acceptor& acceptor, Nanoseconds patience);

 private:
  ConnectOutcome call(int peer, const SocketAddress& address, std::string& why);
  int world_size() const { return static_cast<int>(group_.sockets.size()); }
  Introduction introduction(int caller, int acceptor) const {
    return {group_.generation, static_cast<std::uint32_t>(caller), static_cast<std::uint32_t>(acceptor),
            static_cast<std::uint32_t>(world_size())};
  }

  Store& store_;
  const std::string& name_;
  TcpGroup& group_;
  const Secret& secret_;
  const Deadline deadline_;
};

}  // namespace

TcpGroup connect_tcp_group(Store& store, const std::string& name, int rank, int world_size, const TcpOptions& options,
                           Deadline deadline) {
  const auto addresses = addresses_to_bind(options.bind);
  const auto exposed = std::find_if(addresses.begin(), addresses.end(), [](const auto& a) { return !a.is_loopback(); });
  if (exposed != addresses.end() && !options.secret) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("listening on {} needs a secret that all workers have, or anybody could join: give "
                            "PACELINE_SECRET_FILE (a file with 64 hexadecimal digits, chmod 600)",
                            exposed->host()),
                rank);
  }
  std::vector<UniqueFd> listeners;
  std::vector<SocketAddress> listening;
  for (const SocketAddress& address : addresses) {
    listeners.push_back(listen_on(address, options.ports, SOMAXCONN));
    listening.push_back(local_address(listeners.back().get()));
  }

  const TcpTerms terms = agree_on_terms(store, name, rank, options, deadline);
  if (options.secret.has_value() != terms.secret.empty()) {
    throw Error(ErrorCode::Mismatch,
                fmt::format("joining '{}': rank 0 was given {} secret, but rank {} was given {}", name,
                            terms.secret.empty() ? "a" : "no", rank, options.secret ? "one" : "none"),
                rank, 0);
  }
  const Secret secret = options.secret ? *options.secret : Secret::from_hex(terms.secret);

  TcpGroup group;
  group.rank = rank;
  group.generation = terms.generation;
  group.all_reduce = terms.all_reduce;
  group.segment_bytes = terms.segment_bytes;
  group.sockets.resize(static_cast<std::size_t>(world_size));
  group.addresses.resize(static_cast<std::size_t>(world_size));
  group.pids.resize(static_cast<std::size_t>(world_size));

  Meeting meeting(store, name, group, secret, deadline);
  Acceptor acceptor(std::move(listeners), secret);
  std::vector<Whereabouts> all;
  // Strangers are sent away from the first moment; else they would fill the queue in which a peer has to wait.
  const Whereabouts own{this_host(), ::getpid(), listening};
  for (const auto& text : meet(store, fmt::format("tcp/{}/address", name), name, rank, world_size, own.text(), deadline,
                               [&] { meeting.let_in_one(acceptor, Nanoseconds(0)); })) {
    auto whereabouts = Whereabouts::from_text(text);
    if (!whereabouts) throw damaged(name, rank, static_cast<int>(all.size()), "the addresses", text);
    all.push_back(*std::move(whereabouts));
  }
  for (int peer = 0; peer < world_size; ++peer) {
    group.pids[static_cast<std::size_t>(peer)] = all[static_cast<std::size_t>(peer)].pid;
  }
  group.ranks_here =
      static_cast<int>(std::count_if(all.begin(), all.end(), [&](const auto& a) { return a.host == own.host; }));

  // Rank 0 only lets in, so nobody waits in a circle.
  for (int peer = 0; peer < rank; ++peer) meeting.call(peer, all[static_cast<std::size_t>(peer)]);
  meeting.let_in(acceptor);
  for (const UniqueFd& socket : group.sockets) {
    if (socket) tune(socket.get(), options.silence);
  }
  return group;
}

namespace {

// Tries all addresses, again and again: a peer's queue may be full, or a stranger's attempts may have pushed this rank
// out.
void Meeting::call(int peer, const Whereabouts& at) {
  constexpr int kTries = 5;
  const auto loopback = [](const SocketAddress& address) { return address.is_loopback(); };
  if (at.host != this_host() && std::all_of(at.addresses.begin(), at.addresses.end(), loopback)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("joining '{}': rank {} is on another host than rank {}, but listens on loopback only. Say "
                            "where to listen with PACELINE_BIND",
                            name_, peer, group_.rank),
                group_.rank, peer);
  }
  std::string why = "it gives no address";
  Nanoseconds pause = std::chrono::milliseconds(5);
  for (int hung_up = 0;;) {
    for (const SocketAddress& address : at.addresses) {
      const ConnectOutcome outcome = call(peer, address, why);
      if (outcome == ConnectOutcome::Met) return;
      if (outcome == ConnectOutcome::HungUp && ++hung_up >= kTries) {
        throw Error(
            ErrorCode::Mismatch,
            fmt::format("joining '{}': rank {} at {} does not let rank {} in. Have all workers the same secret?", name_,
                        peer, address.text(), group_.rank),
            group_.rank, peer);
      }
    }
    if (deadline_.passed()) {
      throw Error(
          ErrorCode::Timeout,
          fmt::format("joining '{}': rank {} cannot be reached from rank {}: {}", name_, peer, group_.rank, why),
          group_.rank, peer);
    }
    store_.add(key(name_, "joining", group_.rank), 0);  // throws if the job has failed meanwhile
    ::poll(nullptr, 0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(pause).count()));
    pause = std::min<Nanoseconds>(2 * pause, std::chrono::milliseconds(500));
  }
}

ConnectOutcome Meeting::call(int peer, const SocketAddress& address, std::string& why) {
  constexpr Nanoseconds kForOneTry = std::chrono::seconds(10);
  const Deadline patience(std::clamp(deadline_.left(), Nanoseconds(0), kForOneTry));
  UniqueFd socket;
  const auto outcome = connect_authenticated(address, secret_, introduction(group_.rank, peer), patience, socket, why);
  if (outcome == ConnectOutcome::Met) {
    group_.addresses[static_cast<std::size_t>(peer)] = address.text();
    group_.sockets[static_cast<std::size_t>(peer)] = std::move(socket);
  }
  return outcome;
}

void Meeting::let_in(Acceptor& acceptor) {
  for (;;) {
    std::vector<int> missing;
    for (int peer = group_.rank + 1; peer < world_size(); ++peer) {
      if (!group_.sockets[static_cast<std::size_t>(peer)]) missing.push_back(peer);
    }
    if (missing.empty()) return;
    if (deadline_.passed()) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("joining '{}': rank {} did not connect to rank {} within the time limit", name_,
                              fmt::join(missing, ", "), group_.rank),
                  group_.rank, missing.front());
    }
    const bool came = let_in_one(acceptor, std::min<Nanoseconds>(deadline_.left(), std::chrono::milliseconds(200)));
    if (!came) store_.add(key(name_, "joining", group_.rank), 0);  // throws if the job has failed meanwhile
  }
}

bool Meeting::let_in_one(Acceptor& acceptor, Nanoseconds patience) {
  auto candidate = acceptor.next(patience);
  if (!candidate) return false;
  const auto caller = static_cast<int>(candidate->introduction.caller);
  const Introduction due = introduction(caller, group_.rank);
  if (candidate->introduction.generation != due.generation) return false;  // another communicator's: sent away
  if (candidate->introduction != due || caller <= group_.rank || caller >= world_size()) {
    throw Error(ErrorCode::Mismatch,
                fmt::format("joining '{}': rank {} of {} came to see rank {}, but this is rank {} of {}; start all "
                            "workers of a job with one launcher",
                            name_, caller, candidate->introduction.world_size, candidate->introduction.acceptor,
                            group_.rank, world_size()),
                group_.rank, caller);
  }
  if (!send_all(candidate->socket.get(), candidate->answer, Deadline(std::chrono::seconds(2)))) return false;
  // It may come again, having lost the first connection on the way.
  group_.addresses[static_cast<std::size_t>(caller)] = candidate->address;
  group_.sockets[static_cast<std::size_t>(caller)] = std::move(candidate->socket);
  return true;
}

}  // namespace
}  // namespace paceline
