import ast,json,subprocess,sys,textwrap,re,collections
from pathlib import Path
R=Path(sys.argv[1])
out=json.loads(subprocess.run([R/'.venv/bin/ruff','check','.','--select','E501','--output-format','json'],cwd=R,capture_output=True,text=True).stdout)
by=collections.defaultdict(list)
for e in out: by[e['filename']].append(e['location']['row'])
for f,rows in by.items():
    for row in sorted(rows,reverse=True):
        src=Path(f).read_text(); lines=src.split('\n'); i=row-1
        if len(lines[i])<=120: continue
        node=next((n for n in ast.walk(ast.parse(src)) if isinstance(n,ast.Expr) and isinstance(n.value,ast.Constant) and isinstance(n.value.value,str) and n.lineno<=row<=n.end_lineno),None)
        l=lines[i]; ind=l[:len(l)-len(l.lstrip())]
        if node is None:
            if l.strip().startswith('#'):
                new=textwrap.wrap(l.strip()[1:].strip(),width=118-len(ind),break_long_words=False,break_on_hyphens=False)
                lines[i:i+1]=[f'{ind}# {x}' for x in new]
                Path(f).write_text('\n'.join(lines))
            continue
        lo,hi=node.lineno-1,node.end_lineno-1
        if lo==hi:
            body=l.strip(); m=re.fullmatch(r'(r?""")(.*)"""',body,re.S)
            if m is None: continue
            new=textwrap.wrap(m[1]+m[2],width=120-len(ind),break_long_words=False,break_on_hyphens=False)
            lines[i:i+1]=[ind+x for x in new]+[ind+'"""']
        else:
            stop=lambda x: not x.strip() or x.lstrip().startswith(('* ','- ','|','```')) 
            a=i
            while a>lo and not stop(lines[a-1]) and not lines[a].lstrip().startswith(('* ','- ')): a-=1
            b=i
            while b<hi and not stop(lines[b+1]) and lines[b+1].strip()!='"""': b+=1
            tail=''
            para=[x.strip() for x in lines[a:b+1]]
            if b==hi and para[-1].endswith('"""'): para[-1]=para[-1][:-3]; tail='"""'
            ind=lines[a][:len(lines[a])-len(lines[a].lstrip())]
            new=[ind+x for x in textwrap.wrap(' '.join(para),width=120-len(ind),break_long_words=False,break_on_hyphens=False)]
            if tail: new.append(ind+tail)
            lines[a:b+1]=new
        t='\n'.join(lines)
        try: ast.parse(t)
        except SyntaxError: print('rewrap',f,row); continue
        Path(f).write_text(t)
