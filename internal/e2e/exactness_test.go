//go:build e2e

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// oddities creates every kind of file that a checkpoint may get wrong.
const oddities = `
cd /workspace
git config user.email agent@example.com; git config user.name Agent
head -c 300000 /dev/urandom > binary.bin
printf 'one\r\ntwo\r\n' > crlf.txt; printf '* text=auto eol=lf\n*.txt text\n' > .gitattributes
echo secret > private; chmod 600 private; echo run > run.sh; chmod 755 run.sh; mkdir -m 700 closed; echo in > closed/in
ln -s README.md inside; ln -s /etc/passwd outside; ln -s nowhere dangling; ln -s .. up
mkdir -p empty/in/empty
git init -q nested; (cd nested; git config user.email n@x; git config user.name N; echo n > n; git add n; git commit -q -m n; echo dirty >> n)
git init -q nested/never-committed
git -c protocol.file.allow=always submodule --quiet add ./nested sub 2>/dev/null || true
head -c 209715200 /dev/zero > huge.bin
printf x > 'with space'; printf x > $'new\nline'; printf x > $'bad\xff\xfeutf'; printf x > ./-dash; printf x > '"quoted"'; printf x > 'ünïcode'
echo '*.ignored' >> .gitignore; echo kept > a.ignored
git add crlf.txt run.sh; git commit -q -m "The agent's own commit"; echo later >> run.sh
`

// havoc changes or removes what oddities created.
const havoc = `
cd /workspace
rm -rf nested empty closed inside outside dangling up binary.bin private run.sh crlf.txt a.ignored .gitattributes
rm -f 'with space' $'new\nline' $'bad\xff\xfeutf' ./-dash '"quoted"' 'ünïcode'
mkdir inside; echo dir > inside/file; echo file > empty; ln -s / closed
git add -A . ; git commit -q -m havoc; git checkout -q -b elsewhere
`

var _ = Describe("a checkpoint", func() {
	w := newWorld()

	It("restores every kind of file, the index and nested repositories exactly", func(ctx SpecContext) {
		const inNested = "cd /workspace/nested; git log --format=%s; git status --porcelain"
		w.create(ctx, w.newTask("odd", idle...))
		w.inAgent(ctx, "odd", oddities)
		tree, git, nested := w.inAgent(ctx, "odd", fingerprint), w.inAgent(ctx, "odd", gitSays), w.inAgent(ctx, "odd", inNested)
		Expect(w.apply(ctx, w.newCheckpoint("odd", "exact"))).To(Succeed())
		ckpt := w.untilDurable(ctx, "exact")
		Expect(ckpt.Status.Skipped).To(ContainElement(HaveField("Path", "huge.bin")))
		Expect(ckpt.Status.SkippedCount).To(BeEquivalentTo(1))

		w.inAgent(ctx, "odd", havoc)
		w.rewind(ctx, "odd", "back", "exact", func(r *clewv1.Rewind) { r.Preserve = clewv1.PreserveDiscard })

		Expect(w.inAgent(ctx, "odd", fingerprint)).To(Equal(tree))
		Expect(w.inAgent(ctx, "odd", gitSays)).To(Equal(git))
		Expect(w.inAgent(ctx, "odd", inNested)).To(Equal(nested))
		Expect(w.inAgent(ctx, "odd", "stat -c %s /workspace/huge.bin")).To(Equal("209715200\n"), "the skipped file is still there")
	})
})
