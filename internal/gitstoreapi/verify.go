package gitstoreapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Verification is the outcome of verifying one checkpoint.
type Verification struct {
	// Commit and State are the checkpoint's commits; empty if the gitstore has no such ref.
	Commit string `json:"commit,omitempty"`
	State  string `json:"state,omitempty"`
	// Damage lists objects of the checkpoint that are missing or damaged, at most MaxDamage;
	// empty if every object is as it was stored.
	Damage []Damage `json:"damage,omitempty"`
}

// MaxDamage is the most that a Verification lists.
const MaxDamage = 1000

// Parts of a checkpoint.
const (
	PartCode  = "code"
	PartState = "agent state"
)

// Damage is an object that is missing or differs from what was stored.
type Damage struct {
	// Part is the part of the checkpoint that needs the object: PartCode or PartState.
	Part string `json:"part"`
	// Kind is commit, tree or blob; object if unknown.
	Kind string `json:"kind"`
	// Object is the object's id; empty if the ref itself is missing.
	Object string `json:"object,omitempty"`
	// Path is the file or folder that the object stores; empty for a commit, for the root
	// folder, and for an object of the history before the checkpoint.
	Path string `json:"path,omitempty"`
	// What says what is wrong with it, such as "is missing".
	What string `json:"what"`
}

// String returns a clause that names the object.
func (d Damage) String() string {
	switch {
	case d.Object == "":
		return "its " + d.Part + " " + d.What
	case d.Path == "":
		return "the " + d.Kind + " " + short(d.Object) + " of its " + d.Part + " " + d.What
	}
	return d.Path + " of its " + d.Part + " (" + d.Kind + " " + short(d.Object) + ") " + d.What
}

// short returns the beginning of an object's id.
func short(id string) string { return id[:min(len(id), 12)] }

// verificationTime bounds one verification, which may have to read a large repository.
const verificationTime = 15 * time.Minute

// Verify verifies that the gitstore has every object of a task's checkpoint as it was stored.
// What it verified within the last day, and not before since, it does not read again; what it
// verified within the last minutes, it does not read again in any case. A refusal
// of the gitstore is returned as a *Refusal.
func (c Client) Verify(ctx context.Context, namespace, uid string, checkpoint int64, since time.Time) (Verification, error) {
	var v Verification
	ctx, cancel := context.WithTimeout(ctx, verificationTime)
	defer cancel()
	query := url.Values{"checkpoint": {strconv.FormatInt(checkpoint, 10)}}
	if !since.IsZero() {
		query.Set("since", since.UTC().Format(time.RFC3339Nano))
	}
	err := c.do(ctx, http.MethodGet, taskPath(namespace, uid)+"/verify", query, maxDiffBytes, &v)
	return v, err
}
