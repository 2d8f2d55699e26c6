// The store as its server uses it: a client's bytes, cut wherever they may be, into requests on a StoreState.
#include <map>

#include "fuzz.h"
#include "paceline/store/protocol.h"
#include "paceline/store/server_state.h"

using namespace paceline;

namespace {

/// Requests made of the input, beside the raw bytes of other inputs, which rarely get past the lengths.
std::string requests_of(fuzz::Input& input) {
  if (input.number<std::uint8_t>() % 2 == 0) return std::string(input.rest());
  std::string bytes;
  while (!input.empty()) {
    StoreMessage message;
    message.op = static_cast<StoreOp>(1 + input.number<std::uint8_t>() % 4);
    message.number = input.number<std::int64_t>();
    message.key = input.bytes(input.number<std::uint8_t>());
    message.value = input.bytes(input.number<std::uint16_t>() % 1024);
    const std::string encoded = encode(message);
    std::string copy = encoded;
    const auto read = take_message(copy);
    FUZZ_CHECK(read && copy.empty());
    FUZZ_CHECK(read->op == message.op && read->number == message.number && read->key == message.key &&
               read->value == message.value);
    bytes += encoded;
  }
  return bytes;
}

void run(StoreState& state, std::map<std::string, std::string>& model, const StoreMessage& request) {
  switch (request.op) {
    case StoreOp::Set:
      if (state.set(request.key, request.value)) model[request.key] = request.value;
      break;
    case StoreOp::Get: break;
    case StoreOp::Add: (void)state.add(request.key, request.number); break;
    case StoreOp::Fail: state.report(failure_in(request)); break;
    default: break;
  }
  const auto known = model.find(request.key);
  const std::string* found = state.find(request.key);
  FUZZ_CHECK((found != nullptr) == (known != model.end()));
  if (found != nullptr) FUZZ_CHECK(*found == known->second);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto step = 1 + input.number<std::uint8_t>();
  std::string bytes = requests_of(input), in;
  StoreState state;
  std::map<std::string, std::string> model;
  fuzz::accepts(ErrorCode::Corrupt, [&] {
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      in += std::string_view(bytes).substr(at, step);
      while (const auto request = take_message(in)) {
        FUZZ_CHECK(request->key.size() + request->value.size() <= kMaxStoreFrame);
        run(state, model, *request);
        if (const auto& first = state.first_failure()) {
          FUZZ_CHECK(first->code.size() <= 64 && first->message.size() <= 16384);
          FUZZ_CHECK(!encode({.op = StoreOp::Failed, .key = first->code, .value = first->message}).empty());
        }
      }
    }
  });
  return 0;
}
