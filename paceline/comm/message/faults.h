#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

#include "paceline/base/clock.h"

namespace paceline {

/// What becomes of one message between ranks that are threads.
struct MessageFate {
  bool dropped = false;  ///< It never arrives; the receiver runs into its deadline.
  bool cut = false;      ///< The connection between the two breaks here: both see PeerLost.
  Nanoseconds delay{0};  ///< It arrives this much later.
};

/// Decides over each message, from whichever thread sends it: sender, receiver, how many went this way before.
class MessageFaults {
 public:
  using Rule = std::function<MessageFate(int sender, int receiver, std::size_t nth)>;

  explicit MessageFaults(Rule rule) : rule_(std::move(rule)) {}

  MessageFate decide(int sender, int receiver, std::size_t nth) {
    std::lock_guard lock(mutex_);
    return rule_(sender, receiver, nth);
  }

 private:
  std::mutex mutex_;
  Rule rule_;
};

}  // namespace paceline
