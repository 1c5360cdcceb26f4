package daemonapi

import "github.com/clew-dev/clew/internal/clip"

// String says how the HEAD was moved, in a sentence.
func (m MovedHead) String() string {
	return "the HEAD of the agent's repository was moved while the task was not running, from " +
		headName(m.FromBranch, m.FromCommit) + " to " + headName(m.Branch, m.Commit)
}

// headName names the commit of a HEAD, and its branch.
func headName(branch, commit string) string {
	text := "no commit"
	if commit != "" {
		text = "commit " + clip.Bytes(commit, 12)
	}
	if branch != "" {
		text += " of branch " + branch
	}
	return text
}
