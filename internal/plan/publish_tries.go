package plan

import (
	"slices"

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

// addTry adds a try to those of a status, unless it is there. The oldest go if the list is full:
// what those have pushed is then taken to keep all that it may.
func addTry(tries []v1alpha1.PublishTry, try v1alpha1.PublishTry) []v1alpha1.PublishTry {
	if slices.Contains(tries, try) {
		return tries
	}
	tries = append(tries, try)
	return tries[max(0, len(tries)-maxTries):]
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

// withoutRef returns the tries of other refs than the one of which it is known what it has.
func withoutRef(tries []v1alpha1.PublishTry, ref string) (others []v1alpha1.PublishTry) {
	for _, t := range tries {
		if t.Ref != ref {
			others = append(others, t)
		}
	}
	return others
}

// know tells the pod about the tries of its ref.
func (p *Publisher) know(tries []v1alpha1.PublishTry, ref string) {
	for _, t := range tries {
		switch {
		case t.Ref != ref:
		case t.Commit != "":
			p.Announced = append(p.Announced, daemonapi.OwnPush{Commit: t.Commit, Onto: t.Onto})
		default:
			p.Tries = append(p.Tries, t.Checkpoint)
		}
	}
}
