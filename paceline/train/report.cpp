#include "paceline/train/report.h"

#include <vector>

namespace paceline {

Report collect_report(const DistributedDataParallel& ddp, const ReportOptions& options) {
  if (const auto difference = ddp.replica_difference()) {
    ddp.recorder().add_finding(
        {.id = "replicas_drifted",
         .severity = Severity::Error,
         .evidence = "the replicas have drifted apart: " + *difference,
         .fix = "find what changes parameters, moments or learning rates on some ranks only; smaller "
                "check_replicas_every narrows down the step"});
  }
  std::vector<RankSummary> ranks;
  RankSummary own = ddp.recorder().summary();
  own.network = network_facts(ddp.comm().links());
  for (const std::string& text : ddp.comm().gather(to_json_text(own))) {
    ranks.push_back(rank_summary_from_json_text(text));
  }
  RunInfo run;
  run.started = utc_text(ddp.started());
  run.id = options.run_id.empty() ? run.started : options.run_id;
  ConfigInfo config;
  config.model = options.model;
  config.parameters = ddp.parameter_count();
  if (options.batch_per_rank > 0) config.batch_per_rank = options.batch_per_rank;
  config.optimizer = options.optimizer;
  config.mode = "synchronous";
  config.codec = ddp.codec();
  config.bucket_bytes = ddp.options().bucket_bytes;
  return make_report(std::move(run), std::move(config), std::move(ranks),
                     {.one_worker_samples_per_s = options.samples_per_s_one, .test_accuracy = options.test_accuracy});
}

}  // namespace paceline
