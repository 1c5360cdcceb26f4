package worktree

import "testing"

// TestGitThatWasKilledAtTheRemoteHasFoundNoDamage: it suspects some, whatever it dies of.
func TestGitThatWasKilledAtTheRemoteHasFoundNoDamage(t *testing.T) {
	const gaveUp = "remote: aborting due to possible repository corruption on the remote side.\x00\nfatal: protocol error: bad pack header"
	for said, want := range map[string]bool{
		"remote: fatal: unable to read 45cf141ba67d59203f02a54f03162f3fcef57830        \n" + gaveUp:    true,
		"remote: error: Could not read 45cf141ba67d59203f02a54f03162f3fcef57830\n" + gaveUp:            true,
		"remote: fatal: packed object 45cf (stored in objects/pack/pack-1.pack) is corrupt\n" + gaveUp: true,
		gaveUp: false,
		"remote: fatal: Out of memory, malloc failed\n" + gaveUp:                         false,
		"remote: the repository is missing":                                              false,
		"fatal: unable to read askpass response\nfatal: could not read Username for 'x'": false,
	} {
		if got := RemoteDamaged(failRemote(&gitError{stderr: said}, "https://store.example.com/fix.git")); got != want {
			t.Errorf("damage is %v, want %v, after %q", got, want, said)
		}
	}
	if RemoteDamaged(nil) {
		t.Error("no error is damage")
	}
}
