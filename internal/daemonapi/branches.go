package daemonapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/clew-dev/clew/internal/refname"
)

// Branch is a branch of one of the task's checkpoints that the agent's repository is to have.
type Branch struct {
	// Name is that of the Checkpoint's entry; see AgentBranchName.
	Name string `json:"name"`
	// Commit is the one at which the gitstore has the branch.
	Commit string `json:"commit"`
}

// Checkout is a branch that the agent's HEAD is to be brought to, once per ID.
type Checkout struct {
	// ID is what CheckoutID returns.
	ID string `json:"id"`
	Branch
	// Checkpoint is the number of the checkpoint whose files the branch has.
	Checkpoint int64 `json:"checkpoint"`
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

// Ref returns the name of the branch's ref in the gitstore.
func (b Branch) Ref(task string) string { return refname.Branch(task, b.Name) }

// The letters of PrepareResult.Branches.
const (
	// BranchMade: prepare has made it.
	BranchMade = 'M'
	// BranchThere: it was there already.
	BranchThere = 'T'
	// BranchKept: the agent's repository has something else of that name.
	BranchKept = 'K'
	// BranchBeside: git can have no such branch beside another one of that repository.
	BranchBeside = 'B'
	// BranchInvalid: git accepts no such name.
	BranchInvalid = 'I'
	// BranchUnsuited: the agent has no repository in which branches can be made.
	BranchUnsuited = 'U'
	// BranchUnfetched: its commit could not be had from the gitstore.
	BranchUnfetched = 'F'
)

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
