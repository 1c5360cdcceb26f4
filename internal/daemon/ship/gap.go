package ship

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// withGaps inserts a Gap wherever sequences after stored are missing, or a Gap up to last
// if there are no records at all; the server then continues after it. Missing sequences
// before first are no longer kept; others were damaged.
func withGaps(stored int64, records []*daemonv1.Record, first, last int64) []*daemonv1.Record {
	out := make([]*daemonv1.Record, 0, len(records)+1)
	next := stored + 1
	for _, r := range records {
		out = append(out, gaps(next, r.GetSequence()-1, first)...)
		out = append(out, r)
		next = r.GetSequence() + 1
	}
	if len(records) == 0 {
		out = append(out, gaps(next, last, first)...)
	}
	return out
}

// gaps returns the gaps that replace the records from one sequence through another.
func gaps(from, through, first int64) []*daemonv1.Record {
	var out []*daemonv1.Record
	if from < first && from <= through {
		end := min(through, first-1)
		out = append(out, gap(from, end, v1alpha1.ReasonHistoryStoreWentBack))
		from = end + 1
	}
	if from <= through {
		out = append(out, gap(from, through, v1alpha1.ReasonSpoolDamaged))
	}
	return out
}

func gap(from, through int64, reason string) *daemonv1.Record {
	return &daemonv1.Record{Sequence: from, Time: timestamppb.Now(),
		Body: &daemonv1.Record_Gap{Gap: &daemonv1.Gap{Through: through, Reason: reason}}}
}
