// What launchers say to each other: frames, cut wherever they may be, and what is read from their JSON.
#include "fuzz.h"
#include "paceline/launch/failure/rank_query.h"
#include "paceline/launch/nodes/heartbeat_message.h"
#include "paceline/launch/nodes/join_request.h"
#include "paceline/launch/nodes/messages.h"

using namespace paceline;
using namespace paceline::launch;

namespace {

/// Reads a message as one kind; what is accepted has to come back the same.
template <class Read, class Write>
void read_as(const nlohmann::json& message, Read&& read, Write&& write) {
  try {
    fuzz::accepts(ErrorCode::Corrupt, [&] {
      const auto value = read(message);
      const nlohmann::json again = write(value);
      FUZZ_CHECK(write(read(again)) == again);
    });
  } catch (const nlohmann::json::exception&) {
    // Its way to refuse.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto step = 1 + input.number<std::uint8_t>();
  const std::string_view bytes = input.rest();
  std::string in;
  fuzz::accepts(ErrorCode::Corrupt, [&] {
    for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(step)) {
      in += bytes.substr(at, static_cast<std::size_t>(step));
      while (const auto frame = take_control(in)) {
        const auto* message = std::get_if<nlohmann::json>(&*frame);
        if (message == nullptr) continue;
        read_as(*message, join_request_from, [](const JoinRequest& request) { return to_json(request); });
        read_as(*message, end_from, [](const WorkerEnd& end) { return to_json(end); });
        read_as(*message, outcome_from, [](const JobOutcome& outcome) { return to_json("leave", outcome); });
        // Ages are rounded, and the host and its processes are those of the writer: only that it is read.
        read_as(
            *message, [](const nlohmann::json& one) { return views_from(one.at("ranks"), now()).size(); },
            [&](std::size_t) { return *message; });
        read_as(*message, errors_from, [](const LastErrors& errors) { return to_json(errors); });
      }
    }
  });
  return 0;
}
