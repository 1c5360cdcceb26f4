package gitstore

import (
	"os"
	"testing"
	"time"
)

// TestADamagedCheckpointIsHealedFromAnotherRepository: that of the same origin by another address
// has the same objects.
func TestADamagedCheckpointIsHealedFromAnotherRepository(t *testing.T) {
	const mirror = "r-fedcba98765432100123"
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			server, fix := withCheckpoints(t)
			objects := fix.objectsOf3()
			other := newClient(t, server.url("team", mirror), server.ca, taskToken("other", 1))
			other.git("fetch", "--quiet", fix.dir, objects["commit"])
			state := fix.as(taskToken("fix", 1))
			other.as(taskToken("fix", 1)).git("fetch", "--quiet", state.url, stateRef("fix", 3))
			other.push(objects["commit"]+":"+codeRef("other", 1), objects["commit of the state"]+":"+stateRef("other", 1))
			loosen(t, server.bare(repository))
			for what, id := range objects {
				if err := damage(looseFile(server.bare(repository), id)); err != nil {
					t.Fatal(err)
				}
				if found := server.verify(3, again()).Damage; len(found) > 0 {
					t.Errorf("%s: not healed: %v", what, found)
				}
			}
			NewMaintainer(server.handler, time.Hour, 0, server.handler.log).maintainAll(t.Context())
			fsck(t, server.bare(repository))
			server.intact(1, 2, 3)
		})
	}
}

// TestWhatIsDamagedInBothRepositoriesStaysDamaged until whoever has it brings it.
func TestWhatIsDamagedInBothRepositoriesStaysDamaged(t *testing.T) {
	const mirror = "r-fedcba98765432100123"
	server, fix := withCheckpoints(t)
	blob, commit := fix.objectsOf3()["blob"], fix.objectsOf3()["commit"]
	other := newClient(t, server.url("team", mirror), server.ca, taskToken("other", 1))
	other.git("fetch", "--quiet", fix.dir, commit)
	other.push(commit+":"+codeRef("other", 1), commit+":"+stateRef("other", 1))
	for name, damage := range map[string]string{repository: "deleted", mirror: "flipped"} {
		loosen(t, server.bare(name))
		if err := damages[damage](looseFile(server.bare(name), blob)); err != nil {
			t.Fatal(err)
		}
	}
	if found := server.verify(3).Damage; len(found) != 1 || found[0].Object != blob {
		t.Errorf("found: %v", found)
	}
	if _, err := os.Stat(looseFile(server.bare(repository), blob)); err == nil {
		t.Error("the damaged object was copied")
	}
	server.healed(fix, taskToken("fix", 1), "blob")
}
