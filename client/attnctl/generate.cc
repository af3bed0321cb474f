// generate: a language model whose attention and caches are in the server, the rest here.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/attnctl/command.h"
#include "client/attnctl/flags.h"
#include "client/attnctl/llama.h"
#include "client/attnctl/table.h"
#include "client/attnctl/tokenizer.h"
#include "lib/base/status_macros.h"

namespace attnserve::ctl {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct GenerateFlags {
  std::string model_dir, model, prompt;
  int64_t max_tokens = 0;
  bool no_cache = false;
  double temperature = 0.0;
  uint64_t seed = 0;
};

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

struct Story {
  std::vector<int> tokens;  // the prompt and what follows, without the first <s>
  std::string text;
  int64_t produced = 0;
  double seconds = 0.0;
  double server_seconds = 0.0;  // waiting for replies
  int64_t cache_bytes = 0;
};

// Attention through a session: each call brings the new tokens only.
class CachedAttention {
 public:
  explicit CachedAttention(client::Session session) : session_(std::move(session)) {}

  absl::StatusOr<Floats> operator()(int64_t layer, const Floats& x, int64_t tokens) {
    v1::DecodeRequest step;
    step.set_layer(static_cast<int32_t>(layer));
    *step.mutable_x() = client::F32Tensor(x, {1, tokens, static_cast<int64_t>(x.size()) / tokens});
    ATTNSERVE_ASSIGN_OR_RETURN(const v1::DecodeResponse reply, session_.Decode(std::move(step)));
    ATTNSERVE_ASSIGN_OR_RETURN(const auto values, client::F32Values(reply.output()));
    return Floats(values.begin(), values.end());
  }
  absl::StatusOr<int64_t> Bytes() {
    ATTNSERVE_ASSIGN_OR_RETURN(const v1::Session state, session_.GetState());
    return state.owned_bytes();
  }

 private:
  client::Session session_;
};

// Attention that keeps nothing: each call brings all tokens.
class StatelessAttention {
 public:
  StatelessAttention(const client::Client& client, std::string model)
      : client_(client), model_(std::move(model)) {}

  absl::StatusOr<Floats> operator()(int64_t layer, const Floats& x, int64_t tokens) {
    v1::ForwardRequest request;
    request.set_model(model_);
    request.set_layer(static_cast<int32_t>(layer));
    *request.mutable_x() =
        client::F32Tensor(x, {1, tokens, static_cast<int64_t>(x.size()) / tokens});
    ATTNSERVE_ASSIGN_OR_RETURN(const v1::ForwardResponse reply, client_.Forward(request));
    ATTNSERVE_ASSIGN_OR_RETURN(const auto values, client::F32Values(reply.output()));
    return Floats(values.begin(), values.end());
  }

 private:
  const client::Client& client_;
  std::string model_;
};

class Generator {
 public:
  Generator(const GenerateFlags& flags, const Llama& llama, const Tokenizer& tokenizer)
      : flags_(flags), llama_(llama), tokenizer_(tokenizer), random_(flags.seed) {}

  // Tells a story; with `show`, prints it as it comes. `incremental` says that `attention`
  // remembers earlier tokens.
  template <typename Attention>
  absl::StatusOr<Story> Tell(Attention& attention, bool incremental, bool show) {
    random_.seed(flags_.seed);
    Story story;
    const auto timed = [&](int64_t layer, const Floats& x, int64_t tokens) {
      const auto start = SteadyClock::now();
      auto result = attention(layer, x, tokens);
      story.server_seconds += SecondsSince(start);
      return result;
    };
    std::vector<int> sequence = {Tokenizer::kBos};
    for (const int token : tokenizer_.Encode(flags_.prompt)) sequence.push_back(token);
    // The last token written is never fed back, so it may lie beyond the model's positions.
    const int64_t room = llama_.config().max_tokens - static_cast<int64_t>(sequence.size()) + 1;
    if (room < 1) {
      return absl::OutOfRangeError(absl::StrCat("the prompt has ", sequence.size(),
                                                " tokens; the model takes at most ",
                                                llama_.config().max_tokens));
    }
    for (size_t i = 1; i < sequence.size(); ++i) Add(sequence[i - 1], sequence[i], show, &story);
    const int64_t limit = std::min(room, flags_.max_tokens);
    const auto start = SteadyClock::now();
    size_t done = 0;  // tokens the attention has seen
    while (story.produced < limit) {
      const size_t from = incremental ? done : 0;
      ATTNSERVE_ASSIGN_OR_RETURN(const Floats logits,
                                 llama_.Run(absl::MakeConstSpan(sequence).subspan(from), timed));
      done = sequence.size();
      const int next = Choose(logits);
      if (next == Tokenizer::kBos || next == Tokenizer::kEos) break;
      ++story.produced;
      Add(sequence.back(), next, show, &story);
      sequence.push_back(next);
    }
    story.seconds = SecondsSince(start);
    if (show) std::printf("\n");
    std::fflush(stdout);  // before the statistics, where both go to one file
    return story;
  }

 private:
  void Add(int previous, int token, bool show, Story* story) const {
    const std::string text = tokenizer_.Decode(previous, token);
    story->tokens.push_back(token);
    story->text += text;
    if (!show) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  // The likeliest token, or one drawn from softmax(logits / temperature). Logits beyond the
  // vocabulary, which pad the head of some models, do not count.
  int Choose(const Floats& all) {
    const auto logits = absl::MakeConstSpan(all).subspan(0, static_cast<size_t>(tokenizer_.size()));
    const auto best = std::max_element(logits.begin(), logits.end());
    if (flags_.temperature <= 0.0) return static_cast<int>(best - logits.begin());
    std::vector<double> weights;
    for (const float logit : logits) {
      weights.push_back(std::exp((static_cast<double>(logit) - *best) / flags_.temperature));
    }
    return std::discrete_distribution<int>(weights.begin(), weights.end())(random_);
  }

  const GenerateFlags& flags_;
  const Llama& llama_;
  const Tokenizer& tokenizer_;
  std::mt19937_64 random_;
};

// Whether the served model can be the attention of the one in the folder.
absl::Status CheckFits(const v1::GetModelResponse& served, const LlamaConfig& config,
                       const std::string& folder) {
  const auto fits = [&config](const v1::LayerSpec& layer) {
    return layer.kind() == v1::LAYER_KIND_SELF_ATTENTION &&
           layer.input_size() == config.hidden_size && layer.output_size() == config.hidden_size &&
           layer.head_count() == config.head_count &&
           layer.kv_head_count() == config.kv_head_count &&
           layer.key_head_size() == config.head_size &&
           layer.value_head_size() == config.head_size && layer.attention().causal();
  };
  if (served.layers_size() == config.layer_count &&
      std::all_of(served.layers().begin(), served.layers().end(), fits)) {
    return absl::OkStatus();
  }
  const v1::LayerSpec first = served.layers_size() > 0 ? served.layers(0) : v1::LayerSpec();
  return absl::InvalidArgumentError(absl::StrCat(
      "the served model \"", served.model().name(), "\" does not fit ", folder, ": it has ",
      served.layers_size(), " attention layers, the first ", first.input_size(), " wide with ",
      first.head_count(), " heads over ", first.kv_head_count(), "; the folder's model has ",
      config.layer_count, ", ", config.hidden_size, " wide with ", config.head_count,
      " heads over ", config.kv_head_count, ". Serve the folder with attnserve --model NAME=",
      folder, " and name it here with --model NAME"));
}

void PrintStatistics(const char* how, const Story& story) {
  const double rate = static_cast<double>(story.produced) / std::max(1e-9, story.seconds);
  std::fprintf(stderr,
               "%s: %s in %.2f s, %.0f tokens/s; %.2f s in calls to the server, %.2f s here\n", how,
               Counted(story.produced, "token").c_str(), story.seconds, rate, story.server_seconds,
               story.seconds - story.server_seconds);
}

void PrintStoryJson(const Story& cached, const Story* recomputed) {
  std::printf(
      "{\"text\": %s, \"tokens\": %lld, \"seconds\": %.6f, \"server_seconds\": %.6f, "
      "\"cache_bytes\": %lld",
      JsonString(cached.text).c_str(), static_cast<long long>(cached.produced), cached.seconds,
      cached.server_seconds, static_cast<long long>(cached.cache_bytes));
  if (recomputed != nullptr) {
    std::printf(
        ", \"no_cache_seconds\": %.6f, \"no_cache_server_seconds\": %.6f, "
        "\"same_text\": %s",
        recomputed->seconds, recomputed->server_seconds,
        recomputed->tokens == cached.tokens ? "true" : "false");
  }
  std::printf("}\n");
}

// What is missing, and what --model-dir must hold.
absl::Status WithContents(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(
      absl::StrCat(status.message(),
                   "; --model-dir must hold config.json, model.safetensors and vocab.json, as "
                   "deploy/demo_model does"));
}

absl::Status Generate(const Global& global, const GenerateFlags& flags) {
  const absl::StatusOr<Llama> loaded = Llama::Load(flags.model_dir);
  if (!loaded.ok()) return WithContents(loaded.status());
  const Llama& llama = *loaded;
  const absl::StatusOr<Tokenizer> vocabulary = Tokenizer::Load(flags.model_dir + "/vocab.json");
  if (!vocabulary.ok()) return WithContents(vocabulary.status());
  const Tokenizer& tokenizer = *vocabulary;
  if (tokenizer.size() > llama.config().vocab_size) {
    return absl::InvalidArgumentError("vocab.json has more pieces than the model has embeddings");
  }
  ATTNSERVE_ASSIGN_OR_RETURN(const client::Client client, Connect(global));
  ATTNSERVE_ASSIGN_OR_RETURN(const v1::GetModelResponse served, client.GetModel(flags.model));
  ATTNSERVE_RETURN_IF_ERROR(CheckFits(served, llama.config(), flags.model_dir));
  const std::string name = served.model().name();

  v1::CreateSessionRequest request;
  request.set_model(name);
  ATTNSERVE_ASSIGN_OR_RETURN(client::Session session, client.CreateSession(request));
  CachedAttention cached_attention(std::move(session));
  Generator generator(flags, llama, tokenizer);
  ATTNSERVE_ASSIGN_OR_RETURN(Story cached, generator.Tell(cached_attention, true, !global.json));
  ATTNSERVE_ASSIGN_OR_RETURN(cached.cache_bytes, cached_attention.Bytes());
  if (!global.json) {
    PrintStatistics("with the cache", cached);
    std::fprintf(stderr, "the session held %s\n", Bytes(cached.cache_bytes).c_str());
  }
  if (!flags.no_cache) {
    if (global.json) PrintStoryJson(cached, nullptr);
    return absl::OkStatus();
  }
  StatelessAttention stateless(client, name);
  ATTNSERVE_ASSIGN_OR_RETURN(const Story recomputed, generator.Tell(stateless, false, false));
  const bool same = recomputed.tokens == cached.tokens;
  if (global.json) {
    PrintStoryJson(cached, &recomputed);
  } else {
    PrintStatistics("without a cache", recomputed);
    std::fprintf(stderr, "the text is %s; the cache made it %.1f times as fast\n",
                 same ? "the same" : "NOT the same", recomputed.seconds / cached.seconds);
  }
  return same ? absl::OkStatus() : absl::DataLossError("the two texts differ");
}

}  // namespace

void AddGenerateCommand(CLI::App* app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* generate = app->add_subcommand(
      "generate", "Let a language model write: attention in the server, the rest here");
  generate
      ->add_option("--model-dir", flags->model_dir,
                   "Llama-style folder: config.json, model.safetensors, vocab.json")
      ->required();
  generate->add_option("--model", flags->model, "Served model; default the only one");
  generate->add_option("--prompt", flags->prompt, "How the text begins");
  generate->add_option("--max-tokens", flags->max_tokens, "Tokens to write, at most")
      ->default_val(255)
      ->check(Count(1));
  generate->add_flag("--no-cache", flags->no_cache,
                     "Afterwards recompute everything with Forward, compare text and time");
  generate
      ->add_option("--temperature", flags->temperature,
                   "0: always the likeliest token; 1: as the model thinks")
      ->check([](const std::string& text) {
        double value = 0.0;
        const bool good = absl::SimpleAtod(text, &value) && value >= 0.0 && std::isfinite(value);
        return good ? std::string() : text + " is not a temperature; expected 0 or more";
      });
  generate->add_option("--seed", flags->seed, "Seed of what --temperature draws");
  generate->footer(
      "The text goes to stdout, statistics to stderr.\n"
      "Examples:\n"
      "  attnctl generate --model-dir deploy/demo_model\n"
      "  attnctl generate --model-dir deploy/demo_model --no-cache\n"
      "  attnctl generate --model-dir deploy/demo_model --temperature 0.8 --seed 7");
  SetCommand(generate, [flags](const Global& global) { return Generate(global, *flags); });
}

}  // namespace attnserve::ctl
