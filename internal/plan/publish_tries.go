package plan

import (
	"slices"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

const (
	// maxTries is how many tries the status lists.
	maxTries = 20
	// maxAnnouncements is how many pushes of one checkpoint are announced one right after the other,
	// while others keep pushing to the ref.
	maxAnnouncements = 3
)

// takenLately is how old a checkpoint may be when its first pod is started, for its status to show that
// it is the first. One that is restored from an older copy is put back only after some time.
const takenLately = 10 * time.Minute

// knowsPods reports whether a status that lists no pod of a checkpoint shows that there was none. It may
// be that of a Task that has adopted the checkpoint, or an older copy: then pods of which it does not
// know may have announced pushes, and made them. So an attempt that the Task has started itself must
// have taken the checkpoint, a short time ago.
func knowsPods(attempts []v1alpha1.Attempt, attempt int64, taken, now time.Time) bool {
	started := slices.ContainsFunc(attempts, func(a v1alpha1.Attempt) bool { return a.Number == attempt && a.StartTime != nil })
	return started && now.Sub(taken) < takenLately
}

// begin adds the try of the first pod that is started for a checkpoint. If there is none of the
// checkpoint although other pods were started for it, or may have been, an earlier version of Clew has
// started them, which announced nothing, or the status was lost, or the tries were too many: what they
// have kept cannot be told, so none is added.
func begin(tries []v1alpha1.PublishTry, try v1alpha1.PublishTry, first bool) []v1alpha1.PublishTry {
	onRecord := slices.ContainsFunc(tries, func(t v1alpha1.PublishTry) bool { return t.Checkpoint == try.Checkpoint && t.Commit == "" })
	if !first && !onRecord {
		return tries
	}
	return addTry(tries, try)
}

// addTry adds a try to those of a status, unless it is there.
func addTry(tries []v1alpha1.PublishTry, try v1alpha1.PublishTry) []v1alpha1.PublishTry {
	if slices.ContainsFunc(tries, func(t v1alpha1.PublishTry) bool {
		t.Outcome = ""
		return t == try
	}) {
		return tries
	}
	return bounded(append(tries, try))
}

// bounded keeps maxTries, the last one among them. Announced pushes that nobody has made go first, and
// then all tries of the oldest checkpoint: what its pods have kept can be told only if all are known.
// The pushes of the last one's checkpoint stay the longest, without the try that says that they are all.
func bounded(tries []v1alpha1.PublishTry) []v1alpha1.PublishTry {
	last := tries[len(tries)-1]
	for len(tries) > maxTries {
		oldest := tries[0].Checkpoint
		i := slices.IndexFunc(tries[:len(tries)-1], func(t v1alpha1.PublishTry) bool { return t.Commit != "" && t.Outcome == "" })
		switch {
		case i >= 0:
			tries = slices.Delete(tries, i, i+1)
		case oldest != last.Checkpoint:
			tries = slices.DeleteFunc(tries, func(t v1alpha1.PublishTry) bool { return t.Checkpoint == oldest })
		default:
			i = slices.IndexFunc(tries, func(t v1alpha1.PublishTry) bool { return t.Commit == "" })
			tries = slices.Delete(tries, max(0, i), max(0, i)+1)
		}
	}
	return tries
}

// afterPod takes into account what is known of the end of a pod: whatever was announced, it may have
// pushed, unless it says that it has not.
func afterPod(tries []v1alpha1.PublishTry, result daemonapi.PublishResult) []v1alpha1.PublishTry {
	if result.NotPushed || result.Reason == v1alpha1.ReasonPublished {
		return tries
	}
	for i := range tries {
		if tries[i].Commit != "" {
			tries[i].Outcome = v1alpha1.PublishTryUnknown
		}
	}
	return tries
}

// ofOlderCopy returns the tries of a status that is an older copy: pods of which it does not know may
// have made any push, announced or not.
func ofOlderCopy(tries []v1alpha1.PublishTry) []v1alpha1.PublishTry {
	pushes := slices.DeleteFunc(tries, func(t v1alpha1.PublishTry) bool { return t.Commit == "" })
	return afterPod(pushes, daemonapi.PublishResult{})
}

// announce adds the push that a pod has announced, and reports whether another pod may make it at
// once.
func announce(tries []v1alpha1.PublishTry, checkpoint int64, result daemonapi.PublishResult) (all []v1alpha1.PublishTry, atOnce bool) {
	try := v1alpha1.PublishTry{
		Ref: resources.PlainText(result.Ref, 255), Checkpoint: checkpoint, Commit: resources.PlainText(result.Commit, 64), Onto: resources.PlainText(result.Onto, 64),
	}
	n := 0
	for _, t := range tries {
		if t.Ref == try.Ref && t.Checkpoint == try.Checkpoint && t.Commit != "" {
			n++
		}
	}
	return addTry(tries, try), n < maxAnnouncements
}

// announcing reports whether a pod has ended with this reason to announce its push. One of an earlier
// version of Clew has no reason of its own for that, nor has a status that such a version has written.
func announcing(reason string) bool {
	return reason == v1alpha1.ReasonPushAnnounced || reason == v1alpha1.ReasonPublishPending
}

// announces reports whether any of the tries is a push that was announced.
func announces(tries []v1alpha1.PublishTry) bool {
	return slices.ContainsFunc(tries, func(t v1alpha1.PublishTry) bool { return t.Commit != "" })
}

// settled returns the tries without those of a ref of which it is known what it has, apart from
// the one that was successful: that another pod of the same checkpoint announces what it pushes
// stays true.
func settled(tries []v1alpha1.PublishTry, done v1alpha1.PublishTry) (others []v1alpha1.PublishTry) {
	for _, t := range tries {
		if t.Ref != done.Ref || t == done {
			others = append(others, t)
		}
	}
	return others
}

// ended returns the tries without those of checkpoints of which a push is announced that a pod may be
// about to make: what it will have kept cannot be told yet.
func ended(tries []v1alpha1.PublishTry) (all []v1alpha1.PublishTry) {
	for _, t := range tries {
		awaited := slices.ContainsFunc(tries, func(a v1alpha1.PublishTry) bool {
			return a.Commit != "" && a.Outcome == "" && a.Ref == t.Ref && a.Checkpoint == t.Checkpoint
		})
		if !awaited || t.Outcome != "" {
			all = append(all, t)
		}
	}
	return all
}

// know tells the pod what others may have pushed to its ref.
func (p *Publisher) know(tries []v1alpha1.PublishTry, ref string) {
	for _, t := range tries {
		switch {
		case t.Ref != ref:
		case t.Commit == "":
			p.Tries = append(p.Tries, t.Checkpoint)
		case t.Outcome == v1alpha1.PublishTryUnknown:
			p.Unreported = append(p.Unreported, daemonapi.OwnPush{Commit: t.Commit, Onto: t.Onto})
		}
	}
}

// announced tells the pod which pushes to its ref are announced.
func (p *Publisher) announced(tries []v1alpha1.PublishTry, ref string) {
	for _, t := range tries {
		if t.Ref == ref && t.Commit != "" {
			p.Announced = append(p.Announced, daemonapi.OwnPush{Commit: t.Commit, Onto: t.Onto})
		}
	}
}
