package worktree

import "testing"

const trunk = "refs/heads/trunk"

// merge merges a branch of the origin, as the agent.
func (p *publisher) merge(branch string, options ...string) {
	p.t.Helper()
	p.git("fetch", "-q", p.origin, branch)
	p.git(append(append([]string{"merge", "-q", "-m", "merge"}, options...), "FETCH_HEAD")...)
}

// over is a push to the trunk after an earlier one.
func over(first Publication, pushed OriginPushed) func(*OriginPush) {
	return func(o *OriginPush) { o.Ref, o.Replaces, o.Onto = trunk, first.Commit, pushed.Onto }
}

func ontoTrunk(o *OriginPush) { o.Ref = trunk }

func TestWhatClewPublishedOntoCommitsOfOthersKeepsThem(t *testing.T) {
	p := newPublisher(t)
	theirs := p.pushOfOthers("trunk")
	p.merge("trunk")
	first := p.publication()
	pushed, err := p.send(first, ontoTrunk) // a fast-forward
	must(t, err)
	wantEqual(t, "onto", theirs, pushed.Onto)

	p.write("left.txt", "changed") // another commit on top
	second := p.publication()
	again, err := p.send(second, over(first, pushed))
	must(t, err)
	wantEqual(t, "onto, after the second push", theirs, again.Onto)
	unchanged, err := p.send(second, over(second, again))
	must(t, err)
	wantEqual(t, "the repetition", OriginPushed{Already: true, Onto: theirs}, unchanged)

	p.git("reset", "-q", "--hard", "v1") // the agent goes back before the commits of others
	p.write("other.txt", "x")
	p.commit("other")
	third := p.publication()
	_, err = p.send(third, over(second, again))
	wantReason(t, err, Diverged)
	wantEqual(t, "the trunk", second.Commit, p.at(trunk))

	forced, err := p.send(third, over(second, again), func(o *OriginPush) { o.Force = true })
	must(t, err)
	wantEqual(t, "the trunk after ForceWithLease", third.Commit, p.at(trunk))
	wantEqual(t, "onto, after ForceWithLease", p.at("refs/tags/v1^{commit}"), forced.Onto)
}

func TestCommitsOfOthersThatTheAgentMergedAreKeptFromThenOn(t *testing.T) {
	p := newPublisher(t)
	first := p.publication()
	pushed, err := p.send(first)
	must(t, err)
	wantEqual(t, "onto a new branch", "", pushed.Onto)
	theirs := p.pushOfOthers("clew/work")
	p.git("clean", "-q", "-f")
	p.merge("clew/work")
	p.write("left.txt", "changed")
	second := p.publication()
	pushed, err = p.send(second, func(o *OriginPush) { o.Replaces, o.Onto = first.Commit, pushed.Onto })
	must(t, err)
	wantEqual(t, "onto", theirs, pushed.Onto)
	p.git("reset", "-q", "--hard", "v1")
	p.write("left.txt", "without theirs")
	_, err = p.send(p.publication(), func(o *OriginPush) { o.Replaces, o.Onto = second.Commit, pushed.Onto })
	wantReason(t, err, Diverged)
}

// The commits that others had when the task pushed over them, allowed, bind nobody later.
func TestWhatWasDiscardedWithPermissionIsNotKept(t *testing.T) {
	p := newPublisher(t)
	p.pushOfOthers("trunk")
	first := p.publication()
	pushed, err := p.send(first, ontoTrunk, func(o *OriginPush) { o.Force = true })
	must(t, err)
	wantEqual(t, "onto", first.Base, pushed.Onto)
	p.write("left.txt", "changed")
	second := p.publication()
	_, err = p.send(second, over(first, pushed))
	must(t, err)
	wantEqual(t, "the trunk", second.Commit, p.at(trunk))
}

// A pod that ended before it reported may have pushed the commit, onto whatever the ref had.
func TestAfterAPushThatWasNotReportedTheAgentsCommitsAreKept(t *testing.T) {
	p := newPublisher(t)
	theirs := p.pushOfOthers("trunk")
	p.merge("trunk")
	first := p.publication()
	_, err := p.send(first, ontoTrunk)
	must(t, err)
	pushed, err := p.send(first, ontoTrunk)
	must(t, err)
	wantEqual(t, "already", true, pushed.Already)
	wantEqual(t, "onto", p.at(trunk+"^"), pushed.Onto)
	p.git("reset", "-q", "--hard", "v1")
	p.write("left.txt", "without theirs")
	_, err = p.send(p.publication(), over(first, pushed))
	wantReason(t, err, Diverged)
	gitIn(t, p.origin, "merge-base", "--is-ancestor", theirs, trunk)
}
