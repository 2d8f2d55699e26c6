#pragma once

// All of Paceline that a training program needs. Programs without libtorch include paceline/comm/comm.h.
#include "paceline/base/error.h"
#include "paceline/comm/comm.h"
#include "paceline/comm/threads.h"
#include "paceline/observe/metrics.h"
#include "paceline/observe/report.h"
#include "paceline/observe/summary.h"
#include "paceline/train/checkpoint.h"
#include "paceline/train/data_loader.h"
#include "paceline/train/data_parallel.h"
#include "paceline/train/gather.h"
#include "paceline/train/gradient_norm.h"
#include "paceline/train/optimizer.h"
#include "paceline/train/report.h"
#include "paceline/train/seed.h"
#include "paceline/train/sync_batch_norm.h"
#include "paceline/train/uneven.h"
