package daemonapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Branch is a branch of one of the task's checkpoints that the agent's repository is to have.
type Branch struct {
	// Name is that of the Checkpoint's entry; see AgentBranchName.
	Name string `json:"name"`
	// Checkpoint is the number of the checkpoint that the branch is of.
	Checkpoint int64 `json:"checkpoint"`
	// Made is set if the agent's repository has got it. From then on it is the agent's, who may
	// move or delete it.
	Made bool `json:"made,omitempty"`
}

// Checkout is a branch that the agent's HEAD is to be brought to, once per ID.
type Checkout struct {
	// ID is what CheckoutID returns.
	ID string `json:"id"`
	Branch
}

// OperationCheckout is the kind of a checkout where operations of several kinds are kept together.
const OperationCheckout = "Checkout"

// NoteCheckout is the reason of the record by which the server remembers a checkout.
const NoteCheckout = "checkout"

// CheckoutID identifies a request to check out the branch of a checkpoint. It names nothing that
// differs when the Checkpoint is applied anew: what was carried out once stays so.
func CheckoutID(checkpoint int64, branch, id string) string {
	text, _ := json.Marshal([]any{checkpoint, branch, id})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:32]
}

// AgentBranchName returns the name that a branch of a checkpoint has in the agent's repository; ""
// if it has none there, since it is a ref at the task's repository that is no branch.
func AgentBranchName(name string) string {
	if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
		return branch
	}
	if strings.HasPrefix(name, "refs/") {
		return ""
	}
	return name
}

// BranchOutcome says what the start of an agent has made of a branch in the agent's repository.
type BranchOutcome string

const (
	// OutcomeMade: prepare has made it.
	OutcomeMade BranchOutcome = "Made"
	// OutcomePresent: it was there already.
	OutcomePresent BranchOutcome = "Present"
	// OutcomeTaken: the agent's repository has something else of that name.
	OutcomeTaken BranchOutcome = "Taken"
	// OutcomeConflicts: git can have no such branch beside another one of that repository.
	OutcomeConflicts BranchOutcome = "Conflicts"
	// OutcomeInvalidName: git accepts no such name.
	OutcomeInvalidName BranchOutcome = "InvalidName"
	// OutcomeUnsuitedRepository: the agent has no repository in which branches can be made.
	OutcomeUnsuitedRepository BranchOutcome = "UnsuitedRepository"
	// OutcomeNoCommit: there is no commit to make it at, since the agent's own was not stored with
	// the checkpoint, or there is nothing to commit.
	OutcomeNoCommit BranchOutcome = "NoCommit"
	// OutcomeNotFetched: the checkpoint could not be had in time.
	OutcomeNotFetched BranchOutcome = "NotFetched"
	// OutcomeGivenUp: the branches of its checkpoint are not made any more, since Clew's container was
	// killed while it made them, and no other ones, for the second time.
	OutcomeGivenUp BranchOutcome = "GivenUp"
)

// BranchResult is what became of a branch.
type BranchResult struct {
	Outcome BranchOutcome
	// Commit is where the agent's repository has the branch, if it was made or found; "" for one
	// that was made before and was not looked at.
	Commit string
}

// outcomes are in the order of the digits by which a result names them. New ones go to the end:
// results outlive upgrades.
func outcomes() []BranchOutcome {
	return []BranchOutcome{OutcomeMade, OutcomePresent, OutcomeTaken, OutcomeConflicts, OutcomeInvalidName, OutcomeUnsuitedRepository, OutcomeNoCommit, OutcomeNotFetched, OutcomeGivenUp}
}

// MarshalText abbreviates the result: many of them have to fit into a termination message.
func (r BranchResult) MarshalText() ([]byte, error) {
	i := slices.Index(outcomes(), r.Outcome)
	id, err := hex.DecodeString(r.Commit)
	if i < 0 || err != nil {
		return nil, fmt.Errorf("%q at %q is not an outcome", r.Outcome, r.Commit)
	}
	return base64.RawStdEncoding.AppendEncode([]byte{'0' + byte(i)}, id), nil
}

// UnmarshalText reads what MarshalText returned. An outcome that is unknown, since it is that of a
// newer daemon, becomes OutcomeNotFetched: the next start tries again.
func (r *BranchResult) UnmarshalText(text []byte) error {
	*r = BranchResult{Outcome: OutcomeNotFetched}
	if len(text) == 0 {
		return nil
	}
	id, err := base64.RawStdEncoding.DecodeString(string(text[1:]))
	if err != nil {
		return fmt.Errorf("read the outcome %q: %w", text, err)
	}
	if i := int(text[0]) - '0'; i >= 0 && i < len(outcomes()) {
		r.Outcome, r.Commit = outcomes()[i], hex.EncodeToString(id)
	}
	return nil
}

// CheckoutResult is the outcome of a checkout.
type CheckoutResult struct {
	ID string `json:"id"`
	// FromCheckpoint and ToCheckpoint have the state before it and after it; 0 if HEAD was there
	// already.
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	ToCheckpoint   int64 `json:"toCheckpoint,omitempty"`
	// Reason is a reason constant of v1alpha1 and Message a sentence for users if it was refused;
	// nothing was changed then.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
