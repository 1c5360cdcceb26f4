package journal

// Stages of a Checkout; each is journalled once what it names is done.
const (
	// CheckoutBegun: the checkout is accepted; nothing was changed.
	CheckoutBegun = "Begun"
	// CheckoutSaved: the previous state is in a checkpoint that gitstore and server have.
	CheckoutSaved = "Saved"
	// CheckoutMarked: HEAD and index are those of the branch, and the checkpoint CheckedOut is
	// taken. The checkout is reported once the gitstore has it; agents may run before.
	CheckoutMarked = "Marked"
)

// Checkout is a checkout of a branch in progress, with everything needed to finish it.
type Checkout struct {
	ID    string `json:"id"`
	Stage string `json:"stage"`
	// Branch is the name of the branch in the agent's repository, Commit where it is, and Target
	// the checkpoint with its files.
	Branch string `json:"branch"`
	Commit string `json:"commit"`
	Target Point  `json:"target"`
	// Tries is how often it was tried to move HEAD.
	Tries int `json:"tries,omitempty"`
	// From is the checkpoint with the state before the checkout, and To the number of the one
	// after it. From is zero if HEAD was there already.
	From Point `json:"from,omitzero"`
	To   int64 `json:"to,omitempty"`
}

// IsPrepared reports whether the workspace is laid out, and nothing under way keeps an agent from
// starting in it. A checkout that only is yet to be reported does not.
func (s *State) IsPrepared() bool {
	return s.Layout != nil && s.Layout.Stage == LayoutReady && s.Rewind == nil && (s.Checkout == nil || s.Checkout.Stage == CheckoutMarked)
}

// BranchTries says which checkpoints' branches could not be made, since the pod's container was
// killed each time.
type BranchTries struct {
	// Begun is set while branches are made: the next start knows by it that this one was killed.
	Begun bool `json:"begun,omitempty"`
	// Alone is the checkpoint whose branches, and no other ones, are being made; 0 if those of all
	// are made together.
	Alone int64 `json:"alone,omitempty"`
	// GivenUp are the checkpoints whose branches are not made any more.
	GivenUp []int64 `json:"givenUp,omitempty"`
}
